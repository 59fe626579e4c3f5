#!lua
-- conv_put: keeps which saved conversations of a model a host has. The hosts of the models saved longest ago make room for it.
-- KEYS[1] prefix
-- ARGV[2] model  [3] host  [4] value  [5] ms to keep it  [6] most hosts of a model  [7] most models
-- Returns 1.
-- Invariant: there are at most that many models, as their index counts them, and at most that many hosts of each.
local key = P .. 'conv:' .. ARGV[2]
if redis.call('TYPE', key).ok ~= 'hash' or redis.call('HEXISTS', key, ARGV[3]) == 0 and redis.call('HLEN', key) >= tonumber(ARGV[6]) then redis.call('DEL', key) end
redis.call('HSET', key, ARGV[3], ARGV[4])
redis.call('PEXPIRE', key, ARGV[5])
admit(P .. 'convs', P .. 'conv:', ARGV[2], tonumber(ARGV[5]), tonumber(ARGV[7]))
return 1
