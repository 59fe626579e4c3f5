#!lua
-- sleep_stop: a sweep takes the right to turn off a sleeping host's machine, or keeps it for another lease.
-- KEYS[1] prefix
-- ARGV[2] host  [3] id of the sweep  [4] token of the sleep  [5] lease ms  [6] 'begin' | 'hold'
-- Returns {'ok', token} | {'wanted'} (begin: work arrived, whoever wants the host awake may take the lease) | {'gone'}
-- (this sleep is over) | {'lost'} (another holds the power lease).
-- Invariant: one sweep at a time turns a machine off, and no process wakes it meanwhile. The field stop_ms shows the
-- host's own runner that its machine is being turned off.
-- include sleeping
local h, who, sleep = ARGV[2], ARGV[3], ARGV[4]
local wrong = sleep_conflict(h, who, sleep, 'asleep')
if wrong then return {wrong} end
if ARGV[6] == 'begin' and has_work(h) then
  free_power(h, sleep) -- sleep_token stays: if nobody wakes the host after all, its machine must still be turned off
  publish({kind = 'host', host = h, state = 'asleep', reason = 'wanted'})
  return {'wanted'}
end
take_power(h, who, sleep, ARGV[5])
if ARGV[6] == 'begin' then
  redis.call('HSET', P .. 'host:' .. h, 'stop_ms', num(NOW))
  changed(h)
  publish({kind = 'host', host = h, state = 'asleep', reason = 'stop'})
end
return {'ok', sleep}
