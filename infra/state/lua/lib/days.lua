-- Counters of a day of UTC, from which a month's costs are made.
-- include base

-- A day is kept for DAYS_KEPT ms and has at most DAY_FIELDS counters.
local DAY_MS, DAYS_KEPT, DAY_FIELDS = 86400000, 63 * 86400000, 10000
local day, day_size

-- count_day adds n, a number as text, to a counter of today: the counter `what` of a host, model or key. New names on a
-- full day count together, as the name ''.
local function count_day(kind, what, name, n)
  if not day then
    day = P .. 'day:' .. num(math.floor(NOW / DAY_MS))
    day_size = redis.call('HLEN', day)
  end
  local field = kind .. ':' .. what .. ':'
  if day_size < DAY_FIELDS or redis.call('HEXISTS', day, field .. name) == 1 then field = field .. name end
  redis.call('HINCRBYFLOAT', day, field, n)
  if day_size == 0 then
    redis.call('PEXPIRE', day, num(DAYS_KEPT))
    day_size = 1
  end
end
