-- Revisions, fencing tokens and events: what every operation but a beat needs.
-- include base

-- rise raises a counter above its last value, and to at least the clock in µs and floor, so that it rises even after
-- data loss.
local function rise(key, floor)
  local n = num(math.max((tonumber(redis.call('GET', key)) or 0) + 1, NOW_US, tonumber(floor) or 0))
  redis.call('SET', key, n)
  return n
end

-- REVS bounds the models in `revs`, which are not forgotten one by one.
local REVS = 10000

-- changed raises the revision and records it for host h, for model m, or with neither for the whole pool. From then on,
-- every decision about them that was made on an older snapshot is stale, even one from before Redis lost its data.
-- Beyond REVS models, those recorded go, and the whole pool counts as changed.
local function changed(h, m)
  local rev = rise(P .. 'rev', 0)
  if h then redis.call('HSET', P .. 'host:' .. h, 'rev', rev) end
  if m then redis.call('HSET', P .. 'revs', 'm:' .. m, rev) end
  local full = m and redis.call('HLEN', P .. 'revs') > REVS
  if full then redis.call('DEL', P .. 'revs') end
  if full or not h and not m then redis.call('HSET', P .. 'revs', 'pool', rev) end
end

-- revision returns the revision that a decision about host h and model m depends on; '' means none.
local function revision(h, m)
  local revs = redis.call('HMGET', P .. 'revs', 'pool', 'm:' .. m)
  revs[3] = h ~= '' and redis.call('HGET', P .. 'host:' .. h, 'rev')
  local newest = 0
  for i = 1, 3 do newest = math.max(newest, tonumber(revs[i] or '0') or 0) end
  return num(newest)
end

-- token returns a fencing token above floor and every earlier token.
local function token(floor) return rise(P .. 'token', (floor or 0) + 1) end

-- epoch returns when Redis got its first data of the pool, in µs. It sets it in a pool that is new or has lost its data.
local function epoch()
  local have = redis.call('GET', P .. 'epoch')
  if not have then
    have = token(0)
    redis.call('SET', P .. 'epoch', have)
  end
  return have
end

-- owner returns whether generation g may write host h: 'ok', 'unknown' (no such host) or 'fenced'.
local function owner(h, g)
  local have = redis.call('HGET', P .. 'host:' .. h, 'generation')
  if not have then return 'unknown' end
  if have ~= g then return 'fenced' end
  return 'ok'
end

-- catalog_version returns the version of the published catalog, or '' if there is none.
local function catalog_version() return redis.call('HGET', P .. 'catalog', 'version') or '' end

-- describe returns host h as mirrors store it: {name, fields, models, tickets}. models is id, fields, …; tickets is id,
-- waiters, fields, … in order: started ones, the load first, then the queue. Fields are as from HGETALL, empty for a
-- record that is gone, and a model's end with used_ms, its last use. It returns nil for a host with more than `most`
-- models and tickets.
local function describe(h, most)
  local fields, loading = redis.call('HGETALL', P .. 'host:' .. h), nil
  for i = 1, #fields, 2 do if fields[i] == 'loading' then loading = fields[i + 1] end end
  local ids, held = {loading}, redis.call('SMEMBERS', P .. 'models:' .. h)
  for _, id in ipairs(redis.call('SMEMBERS', P .. 'begun:' .. h)) do if id ~= loading then ids[#ids + 1] = id end end
  for _, id in ipairs(redis.call('LRANGE', P .. 'queue:' .. h, 0, -1)) do ids[#ids + 1] = id end
  if #ids + #held > most then return nil end
  local models, tickets = {}, {}
  for _, m in ipairs(held) do
    local record = redis.call('HGETALL', P .. 'model:' .. h .. ':' .. m)
    for i = 1, #record, 2 do
      if record[i] == 'type' then
        record[#record + 1] = 'used_ms'
        record[#record + 1] = num(tonumber(redis.call('ZSCORE', P .. 'lru:' .. h .. ':' .. record[i + 1], m) or '0'))
        break
      end
    end
    models[#models + 1] = m
    models[#models + 1] = record
  end
  for _, id in ipairs(ids) do
    tickets[#tickets + 1] = id
    tickets[#tickets + 1] = redis.call('ZCOUNT', P .. 'waiters:' .. id, num(NOW), '+inf')
    tickets[#tickets + 1] = redis.call('HGETALL', P .. 'ticket:' .. id)
  end
  return {h, fields, models, tickets}
end

-- publish queues an event for flush, for the mirrors of all gateways and of the runner on its host (of all runners, if
-- the event names no host). A lost event is harmless, since mirrors also poll.
local events = {}
local function publish(event) events[#events + 1] = event end

-- flush publishes the events of this script, after its last effect. The last event about a host carries the host, {now,
-- epoch, catalog, host}, so that mirrors need not read it, unless it is too large (CARRIED models and tickets, or
-- CARRIED_BYTES of JSON) or the host is gone. The events before it say that more follow. The revision is sent as text,
-- since cjson keeps only 14 digits.
local CARRIED, CARRIED_BYTES = 32, 32 * 1024
local function flush()
  if #events == 0 then return end
  local top, last = redis.call('MGET', P .. 'rev', P .. 'epoch'), {}
  for i, event in ipairs(events) do if event.host then last[event.host] = i end end
  for i, event in ipairs(events) do
    event.rev = top[1] or '0'
    if event.host and last[event.host] ~= i then
      event.more = true
    elseif event.host then
      local ok, host = pcall(describe, event.host, CARRIED) -- all effects have happened, so there must be no error now
      if ok and host and #host[2] > 0 then event.carries = {num(NOW), top[2] or '', catalog_version(), host} end
    end
    local text = cjson.encode(event)
    if #text > CARRIED_BYTES then
      event.carries = nil
      text = cjson.encode(event)
    end
    redis.call('PUBLISH', P .. 'events', text)
    redis.call('PUBLISH', P .. (event.host and 'events:host:' .. event.host or 'events:pool'), text)
  end
end
