#!lua
-- snapshot: what decisions and mirrors need, of the whole pool or of some hosts.
-- KEYS[1] prefix
-- ARGV[2] most bytes of a signed table  [3] most hosts that are described  [4] number of hosts asked for, '' for all of the pool
-- ARGV[5…] those hosts, then models: the hosts that have a copy or a load of them are asked for too
-- Returns {rev, now in ms, epoch, version of the catalogue, number of hosts, hosts, revisions, further hosts, saved options, run-time settings}.
-- Hosts are as describe has them; of one that is asked for and not in the pool, the name. Revisions are name, number, … of `pool` and
-- `m:` models; a host's is its field rev. Further hosts are the names of those that were too many; where none are to be described,
-- name, state, seen_ms, rev, … of each. The last two are signed tables, as record returns them, and {} where hosts are named or none
-- are to be described.
-- Invariant: reads only, all in one step.
local all = ARGV[4] == ''
local tables = all and ARGV[3] ~= '0'
local names, further, revs, count = {}, {}, {}, redis.call('SCARD', P .. 'hosts')
if all then
  for i, h in ipairs(redis.call('SMEMBERS', P .. 'hosts')) do
    if i <= tonumber(ARGV[3]) then names[i] = h
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
    if known[h] or #names == tonumber(ARGV[3]) then return end
    known[h], names[#names + 1] = true, h
  end
  for i = 5, #ARGV do
    if i < 5 + tonumber(ARGV[4]) then
      ask(ARGV[i])
    else
      for _, h in ipairs(redis.call('SMEMBERS', P .. 'copies:' .. ARGV[i])) do ask(h) end
      if #names < tonumber(ARGV[3]) then asked[#asked + 1] = 'm:' .. ARGV[i] end -- else some may be missing
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
return {redis.call('GET', P .. 'rev') or '0', num(NOW), redis.call('GET', P .. 'epoch') or '', catalogue(), count, hosts, revs, further,
  tables and signed('settings:options', ARGV[2]) or {}, tables and signed('settings:runtime', ARGV[2]) or {}}
