#!lua
-- snapshot: everything a decision or a mirror needs, at one revision.
-- KEYS[1] prefix
-- ARGV[2] most bytes of a signed table
-- Returns {rev, now in ms, epoch, version of the catalogue, hosts, saved options, run-time settings}; a host is {name, fields, models, tickets}; models are id, fields, … and tickets
-- id, waiters, fields, …, in their order: what has begun, the load first, then the queue. Fields are as HGETALL has them, none for a record that is gone.
-- The last two are signed tables, as record returns them.
-- Invariant: reads only, all in one step.
local hosts = {}
for i, h in ipairs(redis.call('SMEMBERS', P .. 'hosts')) do
  local models = {}
  for _, m in ipairs(redis.call('SMEMBERS', P .. 'models:' .. h)) do
    models[#models + 1] = m
    models[#models + 1] = redis.call('HGETALL', P .. 'model:' .. h .. ':' .. m)
  end
  local load, ids, tickets = redis.call('HGET', P .. 'host:' .. h, 'loading'), {}, {}
  if load then ids[1] = load end
  for _, id in ipairs(redis.call('SMEMBERS', P .. 'begun:' .. h)) do if id ~= load then ids[#ids + 1] = id end end
  for _, id in ipairs(redis.call('LRANGE', P .. 'queue:' .. h, 0, -1)) do ids[#ids + 1] = id end
  for _, id in ipairs(ids) do
    tickets[#tickets + 1] = id
    tickets[#tickets + 1] = redis.call('ZCOUNT', P .. 'waiters:' .. id, num(NOW), '+inf')
    tickets[#tickets + 1] = redis.call('HGETALL', P .. 'ticket:' .. id)
  end
  hosts[i] = {h, redis.call('HGETALL', P .. 'host:' .. h), models, tickets}
end
return {redis.call('GET', P .. 'rev') or '0', num(NOW), redis.call('GET', P .. 'epoch') or '', catalogue(), hosts,
  signed('settings:options', ARGV[2]), signed('settings:runtime', ARGV[2])}
