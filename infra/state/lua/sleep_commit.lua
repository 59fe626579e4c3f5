#!lua
-- sleep_commit: a sweep makes a ready host without any work drain, so that it can sleep.
-- KEYS[1] prefix
-- ARGV[2] host  [3] id of the sweep  [4] lease ms  [5] revision and [6] active_ms of the decision
-- Returns {'ok', token of the sleep} | {'stale'} (the host changed since the decision) | {'wanted'} (there is work).
-- Invariant: only a host that was ready, beating and without work drains for a sleep.
-- include sleeping
local h, who = ARGV[2], ARGV[3]
local key = P .. 'host:' .. h
if ARGV[5] ~= revision(h, '') then return {'stale'} end
local f = redis.call('HMGET', key, 'state', 'seen_ms', 'active_ms')
if f[1] ~= 'ready' or overdue(f[2]) or (f[3] or '') ~= ARGV[6] then return {'stale'} end
if has_work(h) or held_by_other(h, who) then return {'wanted'} end
local sleep = token(tonumber(redis.call('HGET', P .. 'wake:' .. h, 'token') or '0'))
take_power(h, who, sleep, ARGV[4])
redis.call('HSET', key, 'sleep_token', sleep)
set_host_state(h, 'draining')
return {'ok', sleep}
