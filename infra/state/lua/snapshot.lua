#!lua
-- snapshot: what decisions and mirrors need, of the whole pool or of some hosts.
-- KEYS[1] prefix
-- ARGV[2] most bytes of a signed table  [3] most hosts that are described  [4] number of hosts asked for, '' for all of the pool
-- ARGV[5…] those hosts, then models: the hosts that have a copy or a load of them are asked for too
-- Returns {rev, now in ms, epoch, version of the catalogue, number of hosts, hosts, revisions, further hosts, saved options, run-time settings}.
-- A host is {name, fields, models, tickets}; models are id, fields, … and tickets id, waiters, fields, …, in their order: what has begun,
-- the load first, then the queue. Fields are as HGETALL has them, none for a record that is gone. A host that is asked for and not in
-- the pool is left out. Revisions are name, number, … of `pool`, `h:` hosts and `m:` models. Further hosts are the names of those that
-- were too many; where none are to be described, name, state, seen_ms, … of each. The last two are signed tables, as record returns them, and {} where hosts are named or none are to be described.
-- Invariant: reads only, all in one step.
local all = ARGV[4] == ''
local tables = all and ARGV[3] ~= '0'
local names, further, revs, count = {}, {}, {}, redis.call('SCARD', P .. 'hosts')
if all then
  for i, h in ipairs(redis.call('SMEMBERS', P .. 'hosts')) do
    if i <= tonumber(ARGV[3]) then names[i] = h
    elseif tables then further[#further + 1] = h
    else
      local f = redis.call('HMGET', P .. 'host:' .. h, 'state', 'seen_ms')
      for _, v in ipairs({h, f[1] or '', f[2] or ''}) do further[#further + 1] = v end
    end
  end
  revs = redis.call('HGETALL', P .. 'revs')
else
  local asked, known = {'pool'}, {}
  local function ask(h)
    if known[h] or #names == tonumber(ARGV[3]) then return end
    known[h], asked[#asked + 1] = true, 'h:' .. h
    if redis.call('SISMEMBER', P .. 'hosts', h) == 1 then names[#names + 1] = h end
  end
  for i = 5, #ARGV do
    if i < 5 + tonumber(ARGV[4]) then
      ask(ARGV[i])
    else
      local at = redis.call('SMEMBERS', P .. 'copies:' .. ARGV[i])
      for _, h in ipairs(at) do ask(h) end
      if #names < tonumber(ARGV[3]) then asked[#asked + 1] = 'm:' .. ARGV[i] end -- else some may be missing
    end
  end
  for i, rev in ipairs(redis.call('HMGET', P .. 'revs', unpack(asked))) do
    revs[2 * i - 1], revs[2 * i] = asked[i], rev or '0'
  end
end
local hosts = {}
for i, h in ipairs(names) do
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
return {redis.call('GET', P .. 'rev') or '0', num(NOW), redis.call('GET', P .. 'epoch') or '', catalogue(), count, hosts, revs, further,
  tables and signed('settings:options', ARGV[2]) or {}, tables and signed('settings:runtime', ARGV[2]) or {}}
