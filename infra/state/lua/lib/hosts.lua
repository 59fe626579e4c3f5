-- Functions on hosts: their end, sleep and wake.
-- include tickets

-- forget_host removes what only a running runner can hold: model records, NPU, started work. Loads stay queued for the
-- host's next runner; unloads end as done, since their models are gone.
local function forget_host(h)
  for _, m in ipairs(redis.call('SMEMBERS', P .. 'models:' .. h)) do drop_model(h, m) end
  redis.call('DEL', P .. 'npu:' .. h)
  requeue(h, '')
  for _, id in ipairs(redis.call('LRANGE', P .. 'queue:' .. h, 0, -1)) do
    if redis.call('HGET', P .. 'ticket:' .. id, 'kind') == 'unload' then announce(id, close(id, 'ready'), 'ready') end
  end
end

-- is_presumed_lost reports whether a host did not beat for LOST_MS, and then for LOST_MS more after a caller noticed.
-- Without the second wait, a Redis that was itself unreachable would declare every host lost on its return. beat clears
-- the notice.
local function is_presumed_lost(key, seen, noticed)
  if not overdue(seen) then return false end
  if not noticed then redis.call('HSET', key, 'lost_ms', num(NOW)) end
  return noticed and NOW - tonumber(noticed) > LOST_MS
end

-- cancel_drain cancels the sleep of a host that is draining for it, if its runner has not confirmed. The host is ready
-- again, as its runner has believed all along. It returns whether there was such a sleep.
local function cancel_drain(h, reason)
  local key, power = P .. 'host:' .. h, P .. 'wake:' .. h
  local f = redis.call('HMGET', key, 'state', 'sleep_token')
  if f[1] ~= 'draining' or not f[2] then return false end
  redis.call('HSET', key, 'state', 'ready')
  redis.call('HDEL', key, 'sleep_token')
  if redis.call('HGET', power, 'token') == f[2] then redis.call('DEL', power) end
  changed(h)
  publish({kind = 'host', host = h, state = 'ready', reason = reason})
  return true
end

-- wake_lease gives the caller host h's power lease if the host needs waking and nobody holds the lease. It returns
-- the fencing token or ''. A host that is presumed lost needs waking; if its runner is alive, it registers again. A
-- host that drains for a sleep that is not confirmed yet just stays awake.
local function wake_lease(h, gateway, lease_ms)
  local key = P .. 'host:' .. h
  local f = redis.call('HMGET', key, 'state', 'seen_ms', 'lost_ms')
  local state = f[1] or 'asleep'
  if awake(state) then
    if not is_presumed_lost(key, f[2], f[3]) then
      cancel_drain(h, 'wanted')
      return ''
    end
    forget_host(h)
    redis.call('HDEL', key, 'generation', 'lost_ms')
    redis.call('DEL', P .. 'wake:' .. h)
  end
  local held = hash(P .. 'wake:' .. h)
  if held and tonumber(held.exp_ms) >= NOW then return '' end
  local t = token(held and tonumber(held.token) or 0)
  redis.call('HSET', P .. 'wake:' .. h, 'owner', gateway, 'token', t, 'exp_ms', num(NOW + tonumber(lease_ms)), 'since_ms', num(NOW))
  redis.call('PEXPIRE', P .. 'wake:' .. h, 3600000)
  if state ~= 'waking' then
    redis.call('SADD', P .. 'hosts', h)
    redis.call('HSET', key, 'state', 'waking', 'waking_ms', num(NOW))
    redis.call('HDEL', key, 'boot_state', 'boot_error', 'boot_ms', 'packet_ms')
    changed(h)
    publish({kind = 'host', host = h, state = 'waking'})
  end
  return t
end
