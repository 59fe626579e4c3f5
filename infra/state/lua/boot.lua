#!lua
-- boot: a host's machine says how its start goes, before its runner registers.
-- KEYS[1] prefix
-- ARGV[2] host  [3] booting | failed  [4] why it failed, ''
-- Returns 'ok' | 'unknown' (the pool has no such host).
-- Invariant: the report is for people: no decision reads it. A runner's registration removes it, and the next wake
-- does.
-- include changes
local h = ARGV[2]
if redis.call('SISMEMBER', P .. 'hosts', h) == 0 then return 'unknown' end
local key = P .. 'host:' .. h
local state = redis.call('HGET', key, 'state')
if awake(state) then return 'ok' end
redis.call('HSET', key, 'boot_state', ARGV[3], 'boot_error', ARGV[4], 'boot_ms', num(NOW))
changed(h) -- so that mirrors take it up
publish({kind = 'host', host = h, state = state or 'asleep'})
return 'ok'
