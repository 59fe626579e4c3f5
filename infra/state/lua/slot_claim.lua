#!lua
-- slot_claim: a machine of a group finds out which of the group's hosts it is.
-- KEYS[1] prefix
-- ARGV[2] id of the machine  [3…] the group's hosts, in order
-- Returns {'ok', host} | {'full'} (every slot has a machine) | {'recent'} (Redis has lost the pool's state, or never had
-- one: try again).
-- Invariant: a machine has one slot, and a slot one machine. A machine keeps its slot. A new one gets the first that is
-- waking and has none, else the first that has none: a machine that nobody asked for is then put to sleep like any
-- other. If all have one, it takes that of the machine that has been silent for longest, and for SILENT_MS, since that
-- one is gone: a group has as many slots as it can have machines. register refuses a machine that lost its slot.
-- After a loss of the state, machines that serve have LOST_MS to register again, before a new one takes a slot: it would
-- cut their requests. Until they have, gateways may wake their slots.
-- include changes
local SILENT_MS = 120000
local me, waking, idle, silent, since = ARGV[2], nil, nil, nil, NOW - SILENT_MS
for i = 3, #ARGV do
  local h = ARGV[i]
  local f = redis.call('HMGET', P .. 'host:' .. h, 'state', 'machine', 'seen_ms', 'claimed_ms')
  if f[2] == me then return {'ok', h} end
  if not awake(f[1]) then
    local heard = math.max(tonumber(f[3] or '0'), tonumber(f[4] or '0'))
    if f[2] then
      if heard < since then silent, since = h, heard end
    elseif f[1] == 'waking' then
      waking = waking or h
    else
      idle = idle or h
    end
  end
end
if math.abs(NOW - tonumber(epoch()) / 1000) < LOST_MS then return {'recent'} end -- longer ahead: the clock went back
local h = waking or idle or silent
if not h then return {'full'} end
redis.call('SADD', P .. 'hosts', h)
redis.call('HSETNX', P .. 'host:' .. h, 'state', 'asleep')
redis.call('HSET', P .. 'host:' .. h, 'machine', me, 'claimed_ms', num(NOW))
changed(h)
publish({kind = 'host', host = h, state = redis.call('HGET', P .. 'host:' .. h, 'state')})
return {'ok', h}
