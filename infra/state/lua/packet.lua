#!lua
-- packet: the Wake-on-LAN driver sends a magic packet to a host that is being woken.
-- KEYS[1] prefix
-- ARGV[2] host
-- Returns 'ok' | 'gone' (the host is not being woken, or its machine was not seen off since it last registered).
-- Invariant: a wake with packet_ms began after a sleep of the pool that ended with the machine off.
-- include base
local key = P .. 'host:' .. ARGV[2]
local f = redis.call('HMGET', key, 'state', 'off_ms')
if f[1] ~= 'waking' or not f[2] then return 'gone' end
redis.call('HSET', key, 'packet_ms', num(NOW))
return 'ok'
