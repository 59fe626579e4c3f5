#!lua
-- snapshot: everything a decision or a mirror needs, at one revision.
-- KEYS[1] prefix
-- Returns JSON {rev, now, epoch, catalog, hosts: {name: {name, fields, models: {id: fields}, queue: [ticket, …], tickets: {id: fields}}}};
-- an empty collection is left out (JSON libraries disagree on what an empty table is). The queue begins with what has begun, the load first.
-- Invariant: reads only, all in one step.
local out = {rev = redis.call('GET', P .. 'rev') or '0', now = NOW, epoch = redis.call('GET', P .. 'epoch') or '', catalog = redis.call('HGET', P .. 'catalog', 'version') or ''}
for _, h in ipairs(redis.call('SMEMBERS', P .. 'hosts')) do
  local host = {name = h, fields = hash(P .. 'host:' .. h)}
  for _, m in ipairs(redis.call('SMEMBERS', P .. 'models:' .. h)) do
    local record = hash(P .. 'model:' .. h .. ':' .. m)
    if record then
      host.models = host.models or {}
      host.models[m] = record
    end
  end
  local load, ids = host.fields and host.fields.loading, {}
  if load then ids[1] = load end
  for _, id in ipairs(redis.call('SMEMBERS', P .. 'begun:' .. h)) do if id ~= load then ids[#ids + 1] = id end end
  for _, id in ipairs(redis.call('LRANGE', P .. 'queue:' .. h, 0, -1)) do ids[#ids + 1] = id end
  for _, id in ipairs(ids) do
    local t = hash(P .. 'ticket:' .. id)
    if t then
      t.waiters = num(redis.call('ZCOUNT', P .. 'waiters:' .. id, num(NOW), '+inf'))
      host.tickets = host.tickets or {}
      host.tickets[id] = t
      host.queue = ids
    end
  end
  out.hosts = out.hosts or {}
  out.hosts[h] = host
end
return cjson.encode(out)
