#!lua
-- quota: a gateway settles what API keys have used and gets what they may use next.
-- KEYS[1] prefix
-- ARGV[2] gateway  [3] 1 if the gateway ends  then per account: id, 1 if the gateway gives back all that it holds, most open requests (0: no limit), requests that are or may be open there until the answer, then for requests, tokens and loads: most per period (0: no limit), period in ms, what the gateway holds (negative: it owes), then the tokens of the budget that it has used since its last claim (-1: no budget)
-- Returns how many gateways the pool has, then per account: for requests, tokens and loads what the gateway gets (negative: it gives back) and what is left; then the tokens of the budget used in all, how many requests may be open there, and how many gateways use the account.
-- Invariant: the tokens of a budget never sink; what gateways hold and what is left never rises but with time, up to the limit; the open requests allowed at all gateways together stay within the limit once those that are open are.
local ACTIVE, GONE, BUDGET = 3000, 10000, 10 * 365 * 86400000
local function finite(text, otherwise)
  local n = tonumber(text)
  if not n or n ~= n or math.abs(n) > 1e15 then return otherwise end
  return n
end
local function write(n) return string.format('%.6f', n) end
local gateways = P .. 'gateways'
if ARGV[3] == '1' then redis.call('ZREM', gateways, ARGV[2]) else redis.call('ZADD', gateways, num(NOW), ARGV[2]) end
redis.call('ZREMRANGEBYSCORE', gateways, '-inf', num(NOW - GONE))
redis.call('PEXPIRE', gateways, num(GONE))
local all_gateways = math.max(redis.call('ZCARD', gateways), 1)
local out = {num(all_gateways)}
for i = 4, #ARGV - 13, 14 do
  local key, idle = P .. 'quota:' .. ARGV[i], ARGV[i + 1] == '1'
  local most, open = finite(ARGV[i + 2], 0), finite(ARGV[i + 3], 0)
  local h = hash(key) or {}
  local k, others, gone = idle and 0 or 1, 0, {}
  for f, v in pairs(h) do
    if string.sub(f, 1, 2) == 'g:' then
      local at, may = string.match(v, '^(%d+) (%d+)$')
      at = finite(at, 0)
      if NOW - at > GONE or at > NOW + GONE then gone[#gone + 1] = f
      elseif f ~= 'g:' .. ARGV[2] then
        others = others + finite(may, 0)
        if NOW - at <= ACTIVE then k = k + 1 end
      end
    end
  end
  local parts = math.min(k + 1, math.max(all_gateways, k))
  for _, f in ipairs(gone) do redis.call('HDEL', key, f) end
  local keep, set = 60000, {}
  for r = 1, 3 do
    local n, per, held = finite(ARGV[i + 1 + 3 * r], 0), finite(ARGV[i + 2 + 3 * r], 0), finite(ARGV[i + 3 + 3 * r], 0)
    local got, level = 0, 0
    if n > 0 and per > 0 then
      level = math.min(finite(h['level' .. r], n), n)
      local at = math.min(finite(h['at' .. r], NOW), NOW)
      level = math.min(n, level + (NOW - at) * n / per)
      local all, target = math.min(level + held, n), 0
      if not idle and all > 0 then
        target = all / parts
        if r ~= 2 then target = math.floor(target) end
        if all >= 1 then target = math.max(target, 1) end
      end
      got = target - held
      level = math.max(all - target, -5 * n)
      keep = math.max(keep, 7 * per)
      set[#set + 1] = 'level' .. r; set[#set + 1] = write(level)
      set[#set + 1] = 'at' .. r; set[#set + 1] = num(NOW)
    end
    out[#out + 1] = write(got)
    out[#out + 1] = write(level)
  end
  local spent, more = 0, finite(ARGV[i + 13], -1)
  if more >= 0 then
    spent = math.min(math.max(finite(h.spent, 0), 0) + more, 1e15)
    keep = BUDGET
    set[#set + 1] = 'spent'; set[#set + 1] = num(spent)
  end
  out[#out + 1] = num(spent)
  local may = 0
  if most > 0 and not idle then
    local free = math.max(most - others - open, 0)
    may = open + (free > 0 and math.max(math.floor(free / parts), 1) or 0)
  end
  if idle then redis.call('HDEL', key, 'g:' .. ARGV[2])
  else set[#set + 1] = 'g:' .. ARGV[2]; set[#set + 1] = num(NOW) .. ' ' .. num(may) end
  if #set > 0 then
    redis.call('HSET', key, unpack(set))
    redis.call('PEXPIRE', key, num(keep))
  end
  out[#out + 1] = num(may)
  out[#out + 1] = num(k)
end
return out
