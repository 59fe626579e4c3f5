#!lua
-- sleep_end: a sweep gives up the right to turn off a host's machine.
-- KEYS[1] prefix
-- ARGV[2] host  [3] id of the sweep  [4] token of the sleep
-- ARGV[5] 'done' (it is off) | 'failed' (its driver refused) | 'leave' (its driver accepted; it is not known to be off)  [6] reason (failed)
-- Returns {'ok', token} | {'gone'} (this sleep is over) | {'lost'} (another holds the power lease).
-- Invariant: after 'done' nothing is left of the sleep, and the slot of a group is free; after the others another sweep continues it.
-- include sleeping
local h, sleep, outcome = ARGV[2], ARGV[4], ARGV[5]
local key = P .. 'host:' .. h
local wrong = sleep_conflict(h, ARGV[3], sleep, 'asleep')
if wrong then return {wrong} end
free_power(h, sleep)
if outcome == 'leave' then
  if redis.call('HEXISTS', key, 'stop_ms') == 1 then redis.call('HSET', key, 'left_ms', num(NOW)) end
else
  redis.call('HDEL', key, 'stop_ms', 'left_ms')
end
if outcome == 'done' then
  redis.call('HDEL', key, 'sleep_token', 'machine', 'claimed_ms')
  redis.call('HSET', key, 'off_ms', num(NOW))
elseif outcome == 'failed' then
  redis.call('HSET', key, 'error', ARGV[6])
end
changed(h)
publish({kind = 'host', host = h, state = 'asleep', reason = outcome})
return {'ok', sleep}
