#!lua
-- usage: a gateway adds to the pool's counters, to the day's and to what API keys have spent, in batches after the
-- requests.
-- KEYS[1] prefix
-- ARGV[2] operation id: a batch that is repeated within a minute changes nothing  [3] gateway that shares limits, '' none  [4] 1 if it
-- ends  [5] number of statistics to set  [6] number of statistics to add to  [7] number of the day's counters to add to  then pairs
-- of the first two: name, number  then kind, counter, name, number of the third  then pairs: API key, tokens of its budget
-- Returns how many gateways share limits, then for each API key the tokens that it has spent in all.
-- Invariant: each batch counts once.
-- include days
local GONE, BUDGET = 10000, 10 * 365 * 86400000
local sets, first = tonumber(ARGV[5]), 8
local adds, days = tonumber(ARGV[6]), tonumber(ARGV[7])
local new = redis.call('SET', P .. 'op:' .. ARGV[2], 'usage', 'NX', 'PX', 60000)
if new and sets > 0 then redis.call('HSET', P .. 'stats', unpack(ARGV, first, first + 2 * sets - 1)) end
first = first + 2 * sets
for i = first, first + 2 * adds - 1, 2 do
  if new then redis.call('HINCRBYFLOAT', P .. 'stats', ARGV[i], ARGV[i + 1]) end
end
first = first + 2 * adds
for i = first, first + 4 * days - 1, 4 do
  if new then count_day(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) end
end
local gateways = P .. 'gateways'
if ARGV[4] == '1' then
  redis.call('ZREM', gateways, ARGV[3])
elseif ARGV[3] ~= '' then
  redis.call('ZADD', gateways, num(NOW), ARGV[3])
  redis.call('ZREMRANGEBYSCORE', gateways, '-inf', num(NOW - GONE))
  redis.call('PEXPIRE', gateways, num(GONE))
end
local out = {redis.call('ZCARD', gateways)}
for i = first + 4 * days, #ARGV, 2 do
  local key = P .. 'quota:' .. ARGV[i]
  if new and ARGV[i + 1] ~= '0' then
    redis.call('HINCRBY', key, 'spent', ARGV[i + 1])
    redis.call('PEXPIRE', key, num(BUDGET))
  end
  out[#out + 1] = redis.call('HGET', key, 'spent') or '0'
end
return out
