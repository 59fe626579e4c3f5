#!lua
-- conv_put: keeps which saved conversations of a model a host has. The hosts of the models saved longest ago make room
-- for it.
-- KEYS[1] prefix
-- ARGV[2] model  [3] host  [4] value  [5] ms to keep it  [6] maximum hosts of a model  [7] maximum models
-- Returns 1.
-- Invariant: the index has at most ARGV[7] models, and each model at most ARGV[6] hosts.
-- include base
local key = P .. 'conv:' .. ARGV[2]
if redis.call('HEXISTS', key, ARGV[3]) == 0 and redis.call('HLEN', key) >= tonumber(ARGV[6]) then redis.call('DEL', key) end
redis.call('HSET', key, ARGV[3], ARGV[4])
redis.call('PEXPIRE', key, ARGV[5])
local index, keep = P .. 'convs', tonumber(ARGV[5])
redis.call('ZADD', index, num(NOW + keep), ARGV[2])
redis.call('PEXPIRE', index, num(keep))
local rest = redis.call('ZCARD', index) - tonumber(ARGV[7])
for _, old in ipairs(rest > 0 and redis.call('ZRANGE', index, 0, rest - 1) or {}) do
  redis.call('DEL', P .. 'conv:' .. old)
  redis.call('ZREM', index, old)
end
return 1
