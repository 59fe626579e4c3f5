#!lua
-- need_put: keeps what a load took of its device's memory. The oldest needs make room for it.
-- KEYS[1] prefix
-- ARGV[2] key  [3] value  [4] ms to keep it  [5] most needs of the pool
-- Returns 1.
-- Invariant: the pool has at most that many needs, as their index counts them.
local index = P .. 'needs'
if redis.call('ZCARD', index) > 2 * tonumber(ARGV[5]) then redis.call('DEL', index) end
redis.call('SET', P .. 'need:' .. ARGV[2], ARGV[3], 'PX', ARGV[4])
redis.call('ZADD', index, num(NOW + tonumber(ARGV[4])), ARGV[2])
redis.call('PEXPIRE', index, ARGV[4])
local rest = redis.call('ZCARD', index) - tonumber(ARGV[5])
for _, old in ipairs(rest > 0 and redis.call('ZRANGE', index, 0, rest - 1) or {}) do
  redis.call('DEL', P .. 'need:' .. old)
  redis.call('ZREM', index, old)
end
return 1
