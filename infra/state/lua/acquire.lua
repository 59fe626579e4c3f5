#!lua
-- acquire: a gateway wants a model loaded (or unloaded) and attaches to the single ticket for it.
-- KEYS[1] prefix
-- ARGV[2] gateway  [3] model  [4] kind: load | unload  [5] placement: host chosen by policy, '' to attach only
-- ARGV[6] revision of host and, for a load, model in the snapshot of the placement  [7] waiter lease ms  [8] 1 background: no waiter
-- ARGV[9] 1 to create a ticket even if a copy is recorded as loaded (its runner just refused it)
-- ARGV[10] 1 for a ticket to which no other call attaches: of a management call, or for a further copy
-- ARGV[11] ticket fields, JSON object of strings
-- ARGV[12] operation id, '' none: repeating an id returns the first ticket  [13] power lease ms
-- ARGV[14] ticket that the new one replaces (its host is lost): it is dropped when the new one is created; '' none
-- ARGV[15] highest ticket that the gateway knows, 0 none: a new one is higher, even after data loss
-- ARGV[16] state that the host must be in; ARGV[6] then covers only the model. '' none
-- ARGV[17] priority, 0 for the highest: the ticket's place in the queue. Attaching with a higher one raises it.
-- Returns JSON {status: loaded|attached|created|stale|none, host, ticket, state, position, wake}. wake is the fencing
-- token of the host's power lease, '' if the host is awake or another gateway has the lease. state is final if an
-- operation is repeated late, and `ready` for an unload on a sleeping host, which has nothing to unload. none: no host
-- given and nothing to attach to, or nothing to replace.
-- Invariant: at most one shared load ticket per model; a placement on an older revision changes nothing; the
-- replacement of a background load is one too.
-- include hosts
local gw, m, kind, h = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local background, own, fields, old = ARGV[8] == '1', ARGV[10] == '1', cjson.decode(ARGV[11]), ARGV[14]
local priority = tonumber(ARGV[17])

local function position(host, id)
  for i, t in ipairs(redis.call('LRANGE', P .. 'queue:' .. host, 0, -1)) do if t == id then return i end end
  return 0
end
local function attach(id, status)
  local key = P .. 'ticket:' .. id
  local t, wake = hash(key), ''
  if pending(t.state) then
    if background then
      redis.call('HSET', key, 'background', '1')
    else
      redis.call('ZADD', P .. 'waiters:' .. id, num(NOW + tonumber(ARGV[7])), gw)
    end
    if t.kind == 'load' then wake = wake_lease(t.host, gw, ARGV[13]) end
    if t.state == 'queued' and priority < tonumber(t.priority or '1') then
      enqueue(t.host, id, priority)
      changed(t.host)
      publish({kind = 'ticket', ticket = id, host = t.host, model = m, state = 'queued'})
    end
    t = hash(key) -- losing the host just now requeued its started work
  end
  return cjson.encode({status = status, host = t.host, ticket = id, state = t.state, position = position(t.host, id), wake = wake})
end

if ARGV[12] ~= '' then
  local done = redis.call('GET', P .. 'op:' .. ARGV[12])
  if done and redis.call('EXISTS', P .. 'ticket:' .. done) == 1 then return attach(done, 'attached') end
end
local shared = kind == 'load' and not own
if shared then
  if ARGV[9] ~= '1' then
    for _, host in ipairs(redis.call('SMEMBERS', P .. 'copies:' .. m)) do
      if is_loaded(host, m) then return cjson.encode({status = 'loaded', host = host}) end
    end
  end
  local id = redis.call('HGET', P .. 'wanted', m)
  if id and id ~= old and pending(redis.call('HGET', P .. 'ticket:' .. id, 'state')) then return attach(id, 'attached') end
end
local replaced = old ~= '' and hash(P .. 'ticket:' .. old)
if h == '' or old ~= '' and not (replaced and pending(replaced.state)) then return cjson.encode({status = 'none'}) end
local state = redis.call('HGET', P .. 'host:' .. h, 'state') or 'asleep'
if ARGV[6] ~= revision(ARGV[16] == '' and h or '', kind == 'load' and m or '') or ARGV[16] ~= '' and ARGV[16] ~= state then return cjson.encode({status = 'stale'}) end

if replaced then close(old, 'dropped') end
local id = token(tonumber(ARGV[15]))
local key = P .. 'ticket:' .. id
for k, v in pairs(fields) do redis.call('HSET', key, k, v) end
redis.call('HSET', key, 'kind', kind, 'model', m, 'host', h, 'state', 'queued', 'created_ms', num(NOW), 'background', replaced and replaced.background == '1' and '1' or ARGV[8])
enqueue(h, id, priority)
redis.call('SADD', P .. 'hosts', h)
if kind == 'load' then redis.call('SADD', P .. 'copies:' .. m, h) end
if shared then redis.call('HSET', P .. 'wanted', m, id) end
if ARGV[12] ~= '' then redis.call('SET', P .. 'op:' .. ARGV[12], id, 'PX', 60000) end
changed(h, kind == 'load' and m)
if replaced then
  changed(replaced.host)
  announce(old, replaced, 'dropped')
end
if kind == 'unload' and not awake(state) and state ~= 'waking' then
  announce(id, close(id, 'ready'), 'ready')
else
  publish({kind = 'ticket', ticket = id, host = h, model = m, state = 'queued'})
end
return attach(id, 'created')
