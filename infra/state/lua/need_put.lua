#!lua
-- need_put: keeps what a load took of its device's memory. The oldest needs make room for it.
-- KEYS[1] prefix
-- ARGV[2] key  [3] value  [4] ms to keep it  [5] most needs of the pool
-- Returns 1.
-- Invariant: the pool has at most that many needs, as their index counts them.
redis.call('SET', P .. 'need:' .. ARGV[2], ARGV[3], 'PX', ARGV[4])
admit(P .. 'needs', P .. 'need:', ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5]))
return 1
