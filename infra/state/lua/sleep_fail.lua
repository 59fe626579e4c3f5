#!lua
-- sleep_fail: a host's runner could not turn its machine off, and serves again.
-- KEYS[1] prefix
-- ARGV[2] host  [3] generation  [4] token of the sleep
-- Returns {'ok', token} | {'gone'} (this sleep is over) | {'fenced'} | {'unknown'}.
-- Invariant: nothing is left of the sleep. A host that was asleep is ready; one that is being woken may register. It
-- counts as used, so that the next sleep is tried after another idle time.
-- include sleeping
local h, sleep = ARGV[2], ARGV[4]
local key = P .. 'host:' .. h
local o = owner(h, ARGV[3])
if o ~= 'ok' then return {o} end
local f = redis.call('HMGET', key, 'state', 'sleep_token')
if f[2] ~= sleep or f[1] ~= 'asleep' and f[1] ~= 'waking' then return {'gone'} end
free_power(h, sleep)
redis.call('HDEL', key, 'sleep_token', 'stop_ms', 'left_ms')
if f[1] == 'asleep' then
  redis.call('HSET', key, 'active_ms', num(NOW), 'seen_ms', num(NOW))
  set_host_state(h, 'ready')
else
  changed(h)
  publish({kind = 'host', host = h, state = 'waking', reason = 'sleep'})
end
return {'ok', sleep}
