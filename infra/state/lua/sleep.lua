#!lua
-- sleep: the steps by which a host goes to sleep, each all or nothing.
-- KEYS[1] prefix
-- ARGV[2] host  [3] verb  [4] who: id of the sweep, or the runner's generation (drained)  [5] token of the sleep, '' (commit)
-- ARGV[6] lease ms (commit, stop, hold)  [7] revision (commit)  [8] active_ms that the decision saw (commit)  [9] reason (failed)
-- Verbs, in order: commit (sweep: a ready host without any work drains) → drained (its runner: nothing is open here, the host
-- is asleep) → stop (sweep: the machine may be turned off now) → hold (sweep: still at it) → done (it is off) | failed (its
-- driver refused) | leave (it was told to go off and is not known to be off). cancel takes
-- back a commit that no runner confirmed.
-- Returns {'ok', token} | {'stale'} (commit: the pool changed since the decision) | {'wanted'} (work came: commit changes nothing,
-- drained makes the host ready again, stop gives the host's power free to whoever wants it awake) | {'gone'} (this sleep is
-- over) | {'lost'} (another holds the power lease) | {'fenced'} | {'unknown'}.
-- Invariant: from stop to done the sleeper holds the lease of `wake:<h>`, so nobody wakes the host meanwhile; a request that
-- comes is queued, and its waiters get the duty to wake when the lease ends. Field sleep_token stays until the machine is
-- known to be off, so that another sweep finishes what a dead one began. Field stop_ms tells the host's own runner that its
-- machine is being turned off.
local h, verb, who, sleep = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local key, power = P .. 'host:' .. h, P .. 'wake:' .. h
local f = redis.call('HMGET', key, 'state', 'sleep_token', 'seen_ms', 'active_ms', 'loading', 'stop_ms')
local state, current = f[1], f[2]
local lease = hash(power)

local function busy()
  return f[5] or redis.call('SCARD', P .. 'models:' .. h) > 0 or redis.call('LLEN', P .. 'queue:' .. h) > 0 or redis.call('SCARD', P .. 'begun:' .. h) > 0
end
local function others() return lease and lease.owner ~= who and tonumber(lease.exp_ms) >= NOW end
local function take(t)
  redis.call('HSET', power, 'owner', who, 'token', t, 'exp_ms', num(NOW + tonumber(ARGV[6])), 'since_ms', num(NOW))
  redis.call('PEXPIRE', power, 3600000)
end
local function free() if lease and lease.token == sleep then redis.call('DEL', power) end end
local function become(new, reason)
  redis.call('HSET', key, 'state', new)
  changed()
  publish({kind = 'host', host = h, state = new, reason = reason})
end

if verb == 'commit' then
  if ARGV[7] ~= (redis.call('GET', P .. 'rev') or '0') then return {'stale'} end
  if state ~= 'ready' or overdue(f[3]) or (f[4] or '') ~= ARGV[8] then return {'stale'} end
  if busy() or others() then return {'wanted'} end
  local t = token(lease and tonumber(lease.token) or 0)
  take(t)
  redis.call('HSET', key, 'sleep_token', t)
  become('draining', 'sleep')
  return {'ok', t}
end
if verb == 'drained' then
  local o = owner(h, who)
  if o ~= 'ok' then return {o} end
  if current ~= sleep then return {'gone'} end
  if state == 'asleep' then return {'ok', sleep} end -- its answer was lost
  if state ~= 'draining' then return {'gone'} end
  if busy() then
    call_off(h, 'wanted')
    return {'wanted'}
  end
  forget_host(h)
  become('asleep', 'sleep')
  return {'ok', sleep}
end
if current ~= sleep then return {'gone'} end
if others() then return {'lost'} end
if verb == 'cancel' then
  if state ~= 'draining' then return {'gone'} end
  call_off(h, 'not confirmed')
  return {'ok', sleep}
end
if state ~= 'asleep' then return {'gone'} end
if verb == 'stop' and busy() then
  free() -- sleep_token stays: should nobody wake the host after all, its machine is still to be turned off
  publish({kind = 'host', host = h, state = 'asleep', reason = 'wanted'})
  return {'wanted'}
end
if verb == 'stop' or verb == 'hold' then
  take(sleep)
  if verb == 'stop' then
    redis.call('HSET', key, 'stop_ms', num(NOW))
    publish({kind = 'host', host = h, state = 'asleep', reason = 'stop'})
  end
  return {'ok', sleep}
end
free()
if verb == 'leave' then
  if f[6] then redis.call('HSET', key, 'left_ms', num(NOW)) end
else
  redis.call('HDEL', key, 'stop_ms', 'left_ms')
end
if verb == 'done' then redis.call('HDEL', key, 'sleep_token') elseif verb == 'failed' then redis.call('HSET', key, 'error', ARGV[9]) end
publish({kind = 'host', host = h, state = 'asleep', reason = verb})
return {'ok', sleep}
