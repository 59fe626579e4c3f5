#!lua
-- claim: a gateway offers to wake a host that an operator wants awake, or whose queue may have no gateway left to wake
-- it (a background load whose gateway died).
-- KEYS[1] prefix
-- ARGV[2] host  [3] gateway  [4] power lease ms  [5] 1: an operator wants it awake, whatever is queued
-- Returns the fencing token of the power lease, '' if the host is awake, another holds the lease or nothing is wanted
-- there.
-- Invariant: a host is woken only for work or at an operator's request; loads without waiters are dropped first.
-- include hosts
local h = ARGV[2]
local wanted = ARGV[5] == '1'
for _, id in ipairs(redis.call('LRANGE', P .. 'queue:' .. h, 0, -1)) do
  local f = redis.call('HMGET', P .. 'ticket:' .. id, 'kind', 'background')
  if f[1] == 'load' and (f[2] == '1' or live_waiters(id) > 0) then
    wanted = true
  elseif f[1] == 'load' then
    local t = close(id, 'dropped')
    changed(h)
    announce(id, t, 'dropped')
  end
end
if not wanted then return '' end
return wake_lease(h, ARGV[3], ARGV[4])
