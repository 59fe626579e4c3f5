-- Functions on a host's way to sleep, for the scripts sleep_*. The sweep takes the host's power lease, `wake:<h>`, to
-- commit the sleep, and again for the stop of the machine, so that nobody wakes the host meanwhile. A request that
-- arrives is queued, and its gateway can take the lease when the sweep gives it up. The field sleep_token stays until
-- the machine is known to be off, so that another sweep can finish what a dead one started.
-- include changes

-- has_work reports whether a host has a model, a load or a ticket.
local function has_work(h)
  return redis.call('HEXISTS', P .. 'host:' .. h, 'loading') == 1 or redis.call('SCARD', P .. 'models:' .. h) > 0 or
    redis.call('LLEN', P .. 'queue:' .. h) > 0 or redis.call('SCARD', P .. 'begun:' .. h) > 0
end

-- held_by_other reports whether somebody other than `who` holds the host's power lease.
local function held_by_other(h, who)
  local lease = hash(P .. 'wake:' .. h)
  return lease and lease.owner ~= who and tonumber(lease.exp_ms or '0') >= NOW
end

-- take_power takes that lease; free_power releases it if it belongs to this sleep.
local function take_power(h, who, sleep, lease_ms)
  redis.call('HSET', P .. 'wake:' .. h, 'owner', who, 'token', sleep, 'exp_ms', num(NOW + tonumber(lease_ms)), 'since_ms', num(NOW))
  redis.call('PEXPIRE', P .. 'wake:' .. h, 3600000)
end
local function free_power(h, sleep)
  if redis.call('HGET', P .. 'wake:' .. h, 'token') == sleep then redis.call('DEL', P .. 'wake:' .. h) end
end

-- set_host_state sets a host's state and publishes it.
local function set_host_state(h, state)
  redis.call('HSET', P .. 'host:' .. h, 'state', state)
  changed(h)
  publish({kind = 'host', host = h, state = state, reason = 'sleep'})
end

-- sleep_conflict returns why `who` may not continue a sleep that needs the host in this state: 'gone' (it is over) or
-- 'lost' (another holds the power lease). It returns nil if `who` may.
local function sleep_conflict(h, who, sleep, state)
  local f = redis.call('HMGET', P .. 'host:' .. h, 'state', 'sleep_token')
  if f[2] ~= sleep then return 'gone' end
  if held_by_other(h, who) then return 'lost' end
  if f[1] ~= state then return 'gone' end
end
