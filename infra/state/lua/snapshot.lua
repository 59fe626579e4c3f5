#!lua flags=no-writes,allow-oom
-- snapshot: reads what decisions and mirrors need, about the whole pool or some hosts. A server that is full, or whose
-- disk fails, responds; one that is no primary any more refuses, as it does the scripts that write.
-- KEYS[1] prefix
-- ARGV[2] maximum hosts to describe  [3] number of requested hosts, '' for the whole pool
-- ARGV[4…] those hosts, then models: hosts with a copy or a load of them are included
-- Returns {rev, now in ms, epoch, version of the catalog, number of hosts, hosts, revisions, other hosts, saved
-- options, run-time settings}. Hosts are as from describe; a requested host that is not in the pool is only its name.
-- Revisions are name, number, … for `pool` and `m:` models; a host's is its field rev. Other hosts are the names of
-- those beyond the limit; if ARGV[2] is 0, they are name, state, seen_ms, rev, … of each. The last two are as from
-- HGETALL, and {} if hosts are requested or ARGV[2] is 0.
-- Invariant: reads only, all in one step.
-- include changes
local info = redis.pcall('INFO', 'replication')
if type(info) == 'string' and string.find(info, 'role:slave', 1, true) then
  return redis.error_reply('READONLY this server is not the primary')
end
local all, most = ARGV[3] == '', tonumber(ARGV[2])
local tables = all and most > 0
local names, further, revs, count = {}, {}, {}, redis.call('SCARD', P .. 'hosts')
if all then
  for i, h in ipairs(redis.call('SMEMBERS', P .. 'hosts')) do
    if i <= most then names[i] = h
    elseif tables then further[#further + 1] = h
    else
      local f = redis.call('HMGET', P .. 'host:' .. h, 'state', 'seen_ms', 'rev')
      for _, v in ipairs({h, f[1] or '', f[2] or '', f[3] or '0'}) do further[#further + 1] = v end
    end
  end
  revs = redis.call('HGETALL', P .. 'revs')
else
  local asked, known = {'pool'}, {}
  local function ask(h)
    if known[h] or #names == most then return end
    known[h], names[#names + 1] = true, h
  end
  for i = 4, #ARGV do
    if i < 4 + tonumber(ARGV[3]) then
      ask(ARGV[i])
    else
      for _, h in ipairs(redis.call('SMEMBERS', P .. 'copies:' .. ARGV[i])) do ask(h) end
      if #names < most then asked[#asked + 1] = 'm:' .. ARGV[i] end -- otherwise some may be missing
    end
  end
  for i, rev in ipairs(redis.call('HMGET', P .. 'revs', unpack(asked))) do
    revs[2 * i - 1], revs[2 * i] = asked[i], rev or '0'
  end
end
local hosts = {}
for i, h in ipairs(names) do
  hosts[i] = (all or redis.call('SISMEMBER', P .. 'hosts', h) == 1) and describe(h, math.huge) or {h}
end
return {redis.call('GET', P .. 'rev') or '0', num(NOW), redis.call('GET', P .. 'epoch') or '', catalog_version(), count, hosts, revs, further,
  tables and redis.call('HGETALL', P .. 'settings:options') or {}, tables and redis.call('HGETALL', P .. 'settings:runtime') or {}}
