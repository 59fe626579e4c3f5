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

-- given is a counter's number, 0 for one more than a day ahead: no counter gets there, so somebody forged it.
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

-- changed raises the revision, and notes it for host h, for model m, or with neither for the whole pool: every decision about
-- them that was made on an older snapshot is stale from here on, also on one from before Redis lost its data.
local function changed(h, m)
  local rev = rise(P .. 'rev', 0)
  if h then redis.call('HSET', P .. 'host:' .. h, 'rev', rev) end
  if m then redis.call('HSET', P .. 'revs', 'm:' .. m, rev) end
  if not h and not m then redis.call('HSET', P .. 'revs', 'pool', rev) end
end

-- revision is what a decision about host h and model m depends on, where '' is none.
local function revision(h, m)
  local revs = redis.call('HMGET', P .. 'revs', 'pool', 'm:' .. m)
  revs[3] = h ~= '' and redis.call('HGET', P .. 'host:' .. h, 'rev')
  local newest = 0
  for i = 1, 3 do newest = math.max(newest, tonumber(revs[i] or '0') or 0) end
  return num(newest)
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

-- catalogue is the version of the published catalogue, '' for none, and for a key that somebody made another type.
local function catalogue()
  local v = redis.pcall('HGET', P .. 'catalog', 'version')
  return type(v) == 'string' and v or ''
end

-- describe is host h as mirrors hold it, {name, fields, models, tickets}: models are id, fields, … and tickets id, waiters,
-- fields, …, in their order: what has begun, the load first, then the queue. Fields are as HGETALL has them, none for a
-- record that is gone. nil for a host with more than `most` models and tickets.
local function describe(h, most)
  local fields, loading = redis.call('HGETALL', P .. 'host:' .. h), nil
  for i = 1, #fields, 2 do if fields[i] == 'loading' then loading = fields[i + 1] end end
  local ids, held = {loading}, redis.call('SMEMBERS', P .. 'models:' .. h)
  for _, id in ipairs(redis.call('SMEMBERS', P .. 'begun:' .. h)) do if id ~= loading then ids[#ids + 1] = id end end
  for _, id in ipairs(redis.call('LRANGE', P .. 'queue:' .. h, 0, -1)) do ids[#ids + 1] = id end
  if #ids + #held > most then return nil end
  local models, tickets = {}, {}
  for _, m in ipairs(held) do
    models[#models + 1] = m
    models[#models + 1] = redis.call('HGETALL', P .. 'model:' .. h .. ':' .. m)
  end
  for _, id in ipairs(ids) do
    tickets[#tickets + 1] = id
    tickets[#tickets + 1] = redis.call('ZCOUNT', P .. 'waiters:' .. id, num(NOW), '+inf')
    tickets[#tickets + 1] = redis.call('HGETALL', P .. 'ticket:' .. id)
  end
  return {h, fields, models, tickets}
end

-- publish has flush tell the mirrors of gateways, and those of the runner that the event is for, or of all runners. Losing an
-- event is harmless: mirrors also poll.
local events = {}
local function publish(event) events[#events + 1] = event end

-- flush publishes the events of this script, after its last effect. The last one about a host carries the host, {now, epoch,
-- catalogue, host}, so that no mirror has to read it, unless that is too much (CARRIED models and tickets, or bytes) or the
-- host is gone; those before it say that more comes. The revision goes as text: cjson keeps 14 digits.
local CARRIED, CARRIED_BYTES = 32, 16 * 1024
local function flush()
  if #events == 0 then return end
  local top, last = redis.call('MGET', P .. 'rev', P .. 'epoch'), {}
  for i, event in ipairs(events) do if event.host then last[event.host] = i end end
  for i, event in ipairs(events) do
    event.rev = top[1] or '0'
    if event.host and last[event.host] ~= i then
      event.more = true
    elseif event.host then
      local ok, host = pcall(describe, event.host, CARRIED) -- all has happened: no error now
      if ok and host and #host[2] > 0 and weight(host) <= CARRIED_BYTES then event.carries = {num(NOW), top[2] or '', catalogue(), host} end
    end
    local text = cjson.encode(event)
    redis.call('PUBLISH', P .. 'events', text)
    redis.call('PUBLISH', P .. (event.host and 'events:host:' .. event.host or 'events:pool'), text)
  end
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

-- awake reports whether a runner serves a host in this state.
local function awake(state) return state == 'ready' or state == 'draining' end

-- overdue reports whether nothing was heard of an awake host for too long; seen is its field seen_ms.
local function overdue(seen) return NOW - tonumber(seen or '0') > LOST_MS end

-- pending reports whether a ticket in this state has no outcome yet.
local function pending(state) return state == 'queued' or state == 'loading' end
