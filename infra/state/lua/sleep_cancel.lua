#!lua
-- sleep_cancel: a sweep cancels a sleep that no runner has confirmed.
-- KEYS[1] prefix
-- ARGV[2] host  [3] id of the sweep  [4] token of the sleep
-- Returns {'ok', token} | {'gone'} (this sleep is over, or confirmed) | {'lost'} (another holds the power lease).
-- Invariant: a host that drained for this sleep is ready again.
-- include hosts sleeping
local h, sleep = ARGV[2], ARGV[4]
local wrong = sleep_conflict(h, ARGV[3], sleep, 'draining')
if wrong then return {wrong} end
cancel_drain(h, 'not confirmed')
return {'ok', sleep}
