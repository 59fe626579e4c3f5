#!lua
-- sleep_confirm: a draining host's runner reports that nothing is open there, and the host is asleep; or that its machine
-- is in use, and the host is ready again.
-- KEYS[1] prefix
-- ARGV[2] host  [3] generation  [4] token of the sleep  [5] 1 if the machine is in use, else 0
-- Returns {'ok', token} | {'wanted'} (in use, or work arrived: the host is ready again) | {'gone'} (this sleep is over) |
-- {'fenced'} | {'unknown'}.
-- Invariant: a host that sleeps has no models, no work and no NPU holders.
-- include hosts sleeping
local h, sleep = ARGV[2], ARGV[4]
local o = owner(h, ARGV[3])
if o ~= 'ok' then return {o} end
local f = redis.call('HMGET', P .. 'host:' .. h, 'state', 'sleep_token')
if f[2] ~= sleep then return {'gone'} end
if f[1] == 'asleep' then return {'ok', sleep} end -- the first response was lost
if f[1] ~= 'draining' then return {'gone'} end
if ARGV[5] == '1' then redis.call('HSET', P .. 'host:' .. h, 'active_ms', num(NOW)) end
if ARGV[5] == '1' or has_work(h) then
  cancel_drain(h, 'wanted')
  return {'wanted'}
end
forget_host(h)
set_host_state(h, 'asleep')
return {'ok', sleep}
