#!lua
-- hours: a sweep adds the time since the last one to the day's counters of the hosts that are on.
-- KEYS[1] prefix
-- ARGV[2] maximum ms to add  [3…] host, ms since it was last active, price of an hour, …
-- Returns the ms added, 0 at the first call.
-- Invariant: a ms counts once, however many warmers sweep.
-- include days
local counted = P .. 'counted_ms'
local last = tonumber(redis.call('GET', counted) or NOW)
local add = math.min(NOW - last, tonumber(ARGV[2]))
if add < 0 then return 0 end
redis.call('SET', counted, num(NOW))
if add == 0 then return 0 end
count_day('pool', 'ms', '', num(add))
for i = 3, #ARGV, 3 do
  local h, idle, price = ARGV[i], math.min(add, tonumber(ARGV[i + 1])), tonumber(ARGV[i + 2])
  count_day('host', 'awake_ms', h, num(add))
  if idle > 0 then count_day('host', 'idle_ms', h, num(idle)) end
  if price > 0 then count_day('host', 'cost', h, string.format('%.9f', price * add / 3600000)) end
end
return add
