#!lua
-- group_lease: a driver reads a group's machines and changes their number, and no other does so meanwhile.
-- KEYS[1] prefix
-- ARGV[2] group  [3] owner  [4] ms of the lease, 0 to give it up
-- Returns 'ok' | 'lost' (another holds the lease).
-- Invariant: one owner at a time.
-- include base
local key = P .. 'group:' .. ARGV[2]
local lease = hash(key)
if lease and lease.owner ~= ARGV[3] and tonumber(lease.exp_ms) >= NOW then return 'lost' end
if ARGV[4] == '0' then
  redis.call('DEL', key)
else
  redis.call('HSET', key, 'owner', ARGV[3], 'exp_ms', num(NOW + tonumber(ARGV[4])))
  redis.call('PEXPIRE', key, 3600000)
end
return 'ok'
