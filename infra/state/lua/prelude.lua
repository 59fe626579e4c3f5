-- Shared by every script of this folder: Go puts it in front of each. Not an operation of its own.
-- KEYS[1] is the pool's prefix, `rv:{pool}:`; every key a script touches begins with it, so all share one cluster slot.
-- ARGV[1] is the time in ms since the epoch, or 0 to take Redis' own clock (always, outside simulations).
local P = KEYS[1]
local NOW = tonumber(ARGV[1])
local NOW_US = NOW * 1000
if NOW == 0 then
  local t = redis.call('TIME')
  NOW_US = t[1] * 1000000 + t[2]
  NOW = math.floor(NOW_US / 1000)
end

-- LOST_MS is LostAfter of the Go side.
local LOST_MS = 10000

-- num prints a whole number without an exponent.
local function num(n) return string.format('%.0f', n) end

-- hash reads a whole hash as a table, nil when the key is missing.
local function hash(key)
  local flat = redis.call('HGETALL', key)
  if #flat == 0 then return nil end
  local out = {}
  for i = 1, #flat, 2 do out[flat[i]] = flat[i + 1] end
  return out
end

-- catalogue is the version of the published catalogue, '' for none, and for a key that somebody made another type.
local function catalogue()
  local v = redis.pcall('HGET', P .. 'catalog', 'version')
  return type(v) == 'string' and v or ''
end

-- signed reads a record and the MACs of its fields in one step: {fields, MACs}, each as HGETALL has them, none for what is
-- missing; {} for what is no hash or has more bytes than most.
local function signed(name, most)
  local out, bytes = {}, 0
  for i, key in ipairs({P .. name, P .. name .. ':mac'}) do
    local flat = redis.pcall('HGETALL', key)
    if flat.err then return {} end
    for _, v in ipairs(flat) do bytes = bytes + #v end
    out[i] = flat
  end
  if bytes > tonumber(most) then return {} end
  return out
end

-- given is a number of a counter, 0 for one that no counter has come to: it is more than a day ahead, so somebody wrote it.
local function given(n)
  n = tonumber(n) or 0
  return n > NOW_US + 86400000000 and 0 or n
end

-- rise moves a counter up: past its last value, the clock in us and floor, so that it rises also after lost data.
local function rise(key, floor)
  local n = num(math.max(given(redis.call('GET', key)) + 1, NOW_US, given(floor)))
  redis.call('SET', key, n)
  return n
end

-- changed raises the revision: every decision made on an older snapshot is stale from here on, also on one from before
-- Redis lost its data.
local function changed() rise(P .. 'rev', 0) end

-- publish tells all mirrors. Losing an event is harmless: mirrors also poll. The revision goes as text: cjson keeps 14 digits.
local function publish(event)
  event.rev = redis.call('GET', P .. 'rev') or '0'
  redis.call('PUBLISH', P .. 'events', cjson.encode(event))
end

-- token returns a fencing token: higher than any given before and than floor.
local function token(floor) return rise(P .. 'token', (floor or 0) + 1) end

-- owner reports whether generation g may write host h: 'ok', 'unknown' (no such host) or 'fenced'.
local function owner(h, g)
  local have = redis.call('HGET', P .. 'host:' .. h, 'generation')
  if not have then return 'unknown' end
  if have ~= g then return 'fenced' end
  return 'ok'
end

-- awake tells a state in which a runner serves the host.
local function awake(state) return state == 'ready' or state == 'draining' end

-- overdue reports whether nothing was heard of an awake host for too long; seen is its field seen_ms.
local function overdue(seen) return NOW - tonumber(seen or '0') > LOST_MS end

-- pending tells the state of a ticket that has no outcome yet.
local function pending(state) return state == 'queued' or state == 'loading' end

-- live counts the waiters of a ticket whose lease has not run out, dropping the others.
local function live(id)
  redis.call('ZREMRANGEBYSCORE', P .. 'waiters:' .. id, '-inf', '(' .. num(NOW))
  return redis.call('ZCARD', P .. 'waiters:' .. id)
end

-- close ends a ticket: out of the queue and of `wanted`, kept for a minute so that late pollers read its outcome.
-- It returns the ticket as it stood, nil when there is none.
local function close(id, state)
  local key = P .. 'ticket:' .. id
  local t = hash(key)
  if not t then return nil end
  redis.call('LREM', P .. 'queue:' .. t.host, 0, id)
  redis.call('SREM', P .. 'begun:' .. t.host, id)
  if redis.call('HGET', P .. 'wanted', t.model) == id then redis.call('HDEL', P .. 'wanted', t.model) end
  if redis.call('HGET', P .. 'host:' .. t.host, 'loading') == id then redis.call('HDEL', P .. 'host:' .. t.host, 'loading') end
  redis.call('HSET', key, 'state', state, 'ended_ms', num(NOW))
  redis.call('PEXPIRE', key, 60000)
  redis.call('PEXPIRE', P .. 'waiters:' .. id, 60000)
  return t
end

-- announce tells all mirrors of a ticket that close ended; t is what close returned.
local function announce(id, t, state)
  publish({kind = 'ticket', ticket = id, host = t.host, model = t.model, state = state, fields = hash(P .. 'ticket:' .. id)})
end

-- requeue puts what host h had begun, but for ticket keep, back to the head of its queue.
local function requeue(h, keep)
  for _, id in ipairs(redis.call('SMEMBERS', P .. 'begun:' .. h)) do
    if id ~= keep then
      redis.call('SREM', P .. 'begun:' .. h, id)
      if redis.call('HGET', P .. 'ticket:' .. id, 'state') == 'loading' then
        redis.call('HSET', P .. 'ticket:' .. id, 'state', 'queued')
        redis.call('LPUSH', P .. 'queue:' .. h, id)
      end
    end
  end
  redis.call('HDEL', P .. 'host:' .. h, 'loading')
end

-- drop_model forgets a model of a host: record, LRU place, membership.
local function drop_model(h, m)
  local ty = redis.call('HGET', P .. 'model:' .. h .. ':' .. m, 'type')
  redis.call('DEL', P .. 'model:' .. h .. ':' .. m)
  redis.call('SREM', P .. 'models:' .. h, m)
  if ty then redis.call('ZREM', P .. 'lru:' .. h .. ':' .. ty, m) end
end

-- set_npu records which models hold the NPU of a host; '' is none.
local function set_npu(h, models)
  if models == '' then redis.call('DEL', P .. 'npu:' .. h) else redis.call('SET', P .. 'npu:' .. h, models) end
end

-- put_model writes a record from a table of strings. used_age_ms, if there, becomes used_ms by Redis' clock; the last use
-- and the LRU place never move back, and a model without one counts as used now.
-- REQUIRES: fields.type is there (has_type), so that nothing fails after the first write.
local function put_model(h, m, fields)
  local key = P .. 'model:' .. h .. ':' .. m
  local old = redis.call('HMGET', key, 'type', 'used_ms')
  local used = math.max(tonumber(fields.used_ms or '0'), tonumber(old[2] or '0'))
  if fields.used_age_ms then used = math.max(used, NOW - math.max(tonumber(fields.used_age_ms), 0)) end
  if used == 0 then used = NOW end
  fields.used_age_ms, fields.used_ms = nil, num(used)
  local flat = {}
  for k, v in pairs(fields) do flat[#flat + 1] = k; flat[#flat + 1] = v end
  redis.call('HSET', key, unpack(flat))
  redis.call('SADD', P .. 'models:' .. h, m)
  if old[1] and old[1] ~= fields.type then redis.call('ZREM', P .. 'lru:' .. h .. ':' .. old[1], m) end
  redis.call('ZADD', P .. 'lru:' .. h .. ':' .. fields.type, 'GT', num(used), m)
end

-- has_type reports whether a record can be written: every one names its type.
local function has_type(fields) return type(fields) == 'table' and type(fields.type) == 'string' and fields.type ~= '' end

-- forget_host takes away what only a running runner can hold: model records, NPU, begun work. Loads stay queued for the
-- next runner of the host; unloads have come true.
local function forget_host(h)
  for _, m in ipairs(redis.call('SMEMBERS', P .. 'models:' .. h)) do drop_model(h, m) end
  set_npu(h, '')
  requeue(h, '')
  for _, id in ipairs(redis.call('LRANGE', P .. 'queue:' .. h, 0, -1)) do
    if redis.call('HGET', P .. 'ticket:' .. id, 'kind') == 'unload' then announce(id, close(id, 'ready'), 'ready') end
  end
end

-- LEFT_MS is how long after a driver accepted a sleep a machine that nobody saw off may still be going down.
local LEFT_MS = 120000

-- stopping tells a host whose machine is being turned off: somebody holds its stop, or left it a short while ago after the
-- driver had accepted. Its runner, which may still live, is not to serve again.
local function stopping(h)
  local f = redis.call('HMGET', P .. 'host:' .. h, 'state', 'stop_ms', 'left_ms', 'sleep_token')
  if awake(f[1]) then return false end
  if f[3] and NOW - tonumber(f[3]) < LEFT_MS then return true end
  if f[1] ~= 'asleep' or not f[2] then return false end
  local lease = redis.call('HMGET', P .. 'wake:' .. h, 'token', 'exp_ms')
  return lease[1] == f[4] and tonumber(lease[2] or '0') >= NOW
end

-- presumed_lost tells a host that did not beat for LOST_MS and then for LOST_MS more since somebody noticed: the second
-- wait keeps a Redis that was itself away from declaring every host lost the moment it is back. beat withdraws the notice.
local function presumed_lost(key, seen, noticed)
  if not overdue(seen) then return false end
  if not noticed then redis.call('HSET', key, 'lost_ms', num(NOW)) end
  return noticed and NOW - tonumber(noticed) > LOST_MS
end

-- call_off takes back the sleep of a host that drains for one and that its runner has not confirmed: it is ready, as its
-- runner believes all the time. True when there was such a sleep.
local function call_off(h, reason)
  local key, power = P .. 'host:' .. h, P .. 'wake:' .. h
  local f = redis.call('HMGET', key, 'state', 'sleep_token')
  if f[1] ~= 'draining' or not f[2] then return false end
  redis.call('HSET', key, 'state', 'ready')
  redis.call('HDEL', key, 'sleep_token')
  if redis.call('HGET', power, 'token') == f[2] then redis.call('DEL', power) end
  changed()
  publish({kind = 'host', host = h, state = 'ready', reason = reason})
  return true
end

-- wake_duty gives the caller the duty to wake host h when it needs waking and nobody holds the duty: the fencing token,
-- or ''. A host that is presumed lost needs waking; its runner, should it live, registers anew. One that drains for a sleep
-- which is not confirmed yet just stays awake.
local function wake_duty(h, gateway, lease_ms)
  local key = P .. 'host:' .. h
  local f = redis.call('HMGET', key, 'state', 'seen_ms', 'lost_ms')
  local state = f[1] or 'asleep'
  if awake(state) then
    if not presumed_lost(key, f[2], f[3]) then
      call_off(h, 'wanted')
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
    changed()
    publish({kind = 'host', host = h, state = 'waking'})
  end
  return t
end

-- bounded is a reply, or an error in place of one that would take the caller more than MOST bytes: its texts, and EACH for
-- every part of a list.
local MOST, EACH = 32 * 1024 * 1024, 48
local function weight(v)
  if type(v) == 'string' then return #v end
  if type(v) ~= 'table' then return 0 end
  local flat, text = pcall(table.concat, v) -- a hash: several times faster than part by part
  if flat then return #text + EACH * #v end
  local sum = EACH * #v
  for i = 1, #v do
    sum = sum + weight(v[i])
    if sum > MOST then break end
  end
  return sum
end
local function bounded(reply)
  if weight(reply) > MOST then return {err = 'TOOLARGE the reply has more than 32 MiB'} end
  return reply
end
