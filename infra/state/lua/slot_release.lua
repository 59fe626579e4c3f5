#!lua
-- slot_release: a driver has learned from the cloud that a slot's machine is gone, so that another may claim the slot.
-- KEYS[1] prefix
-- ARGV[2] host  [3] id of the machine
-- Returns 'ok' | 'gone' (the slot is another's, or has none).
-- Invariant: only the claim changes.
-- include changes
local h, key = ARGV[2], P .. 'host:' .. ARGV[2]
if redis.call('HGET', key, 'machine') ~= ARGV[3] then return 'gone' end
redis.call('HDEL', key, 'machine', 'claimed_ms')
changed(h)
publish({kind = 'host', host = h, state = redis.call('HGET', key, 'state')})
return 'ok'
