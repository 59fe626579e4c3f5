#!lua
-- quota: a gateway settles what API keys have used and gets what they may use next.
-- KEYS[1] prefix
-- ARGV[2] gateway  [3] 1 if the gateway ends  then per account: id, 1 if the gateway gives back all that it holds, most open requests (0: no limit), requests that are or may be open there until the answer, then for requests, tokens and loads: most per period (0: no limit), period in ms, what the gateway holds (negative: it owes), then the tokens of the budget that it has used since the answer that it booked last (-1: no budget), then the account's counter at the gateway, the claim's number, and that of the claim whose answer it booked last
-- Returns how many gateways the pool has, then per account: for requests, tokens and loads what the gateway gets (negative: it gives back) and what is left; then the tokens of the budget used in all, how many requests may be open there, and how many gateways use the account.
-- o:<counter> remembers what the gateway was given since the answer that it booked last: number, requests, tokens, loads, budget, time. So a claim whose answer was lost is settled once.
-- Invariant: the tokens of a budget never sink; what gateways hold and what is left never rises but with time, up to the limit; the open requests allowed at all gateways together stay within the limit once those that are open are.
local ACTIVE, GONE, REMEMBERED, BUDGET = 3000, 10000, 3600000, 10 * 365 * 86400000
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
for i = 4, #ARGV - 16, 17 do
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
    elseif string.sub(f, 1, 2) == 'o:' then
      local at = finite(string.match(v, ' (%d+)$'), 0)
      if NOW - at > REMEMBERED or at > NOW + REMEMBERED then gone[#gone + 1] = f end
    end
  end
  local parts = math.min(k + 1, math.max(all_gateways, k))
  for _, f in ipairs(gone) do redis.call('HDEL', key, f); h[f] = nil end
  local counter, number = 'o:' .. ARGV[i + 14], finite(ARGV[i + 15], 0)
  local given = {}
  for word in string.gmatch(h[counter] or '', '%S+') do given[#given + 1] = finite(word, 0) end
  local last = given[1] or 0
  if last <= finite(ARGV[i + 16], 0) then given = {} end -- its answer arrived
  local keep, set, got = 60000, {}, {0, 0, 0}
  for r = 1, 3 do
    local n, per, held = finite(ARGV[i + 1 + 3 * r], 0), finite(ARGV[i + 2 + 3 * r], 0), finite(ARGV[i + 3 + 3 * r], 0)
    local level = 0
    if n > 0 and per > 0 then
      local told = held
      held = held + (given[1 + r] or 0)
      level = math.min(finite(h['level' .. r], n), n)
      local at = math.min(finite(h['at' .. r], NOW), NOW)
      level = math.min(n, level + (NOW - at) * n / per)
      local all, target = math.min(level + held, n), 0
      if not idle and all > 0 then
        target = all / parts
        if r ~= 2 then target = math.floor(target) end
        if all >= 1 then target = math.max(target, 1) end
      end
      got[r] = target - told
      level = math.max(all - target, -5 * n)
      keep = math.max(keep, 7 * per)
      set[#set + 1] = 'level' .. r; set[#set + 1] = write(level)
      set[#set + 1] = 'at' .. r; set[#set + 1] = num(NOW)
    end
    out[#out + 1] = write(got[r])
    out[#out + 1] = write(level)
  end
  local spent, more = 0, finite(ARGV[i + 13], -1)
  if more >= 0 then
    spent = math.min(math.max(finite(h.spent, 0), 0) + math.max(more - (given[5] or 0), 0), 1e15)
    keep = BUDGET
    set[#set + 1] = 'spent'; set[#set + 1] = num(spent)
  end
  out[#out + 1] = num(spent)
  local may = 0
  if most > 0 and not idle then
    local free = math.max(most - others - open, 0)
    may = open + (free > 0 and math.max(math.floor(free / parts), 1) or 0)
  end
  if number > 0 then
    set[#set + 1] = counter
    set[#set + 1] = string.format('%.0f %.6f %.6f %.6f %.0f %.0f', number, got[1], got[2], got[3], math.max(more, 0), NOW)
  end
  if number > 0 and number <= last then set = {} -- overtaken on its way by a later claim: nobody waits for the answer
  elseif idle then redis.call('HDEL', key, 'g:' .. ARGV[2])
  else set[#set + 1] = 'g:' .. ARGV[2]; set[#set + 1] = num(NOW) .. ' ' .. num(may) end
  if #set > 0 then
    redis.call('HSET', key, unpack(set))
    redis.call('PEXPIRE', key, num(keep))
  end
  out[#out + 1] = num(may)
  out[#out + 1] = num(k)
end
return out
