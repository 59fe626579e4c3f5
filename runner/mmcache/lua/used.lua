-- Sums the bytes written in recent hours, and deletes the counts of earlier hours and malformed fields.
--
-- KEYS[1]  mm:<pool>:used
-- ARGV[1]  oldest hour that counts, in hours since 1970
--
-- Returns the sum in bytes, as text.
-- Invariant: the reply is small, whatever the hash holds.
local sum, gone = 0, {}
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  local hour, bytes = tonumber(flat[i]), tonumber(flat[i + 1])
  if hour and hour >= tonumber(ARGV[1]) and bytes and bytes >= 0 then
    sum = sum + bytes
  else
    gone[#gone + 1] = flat[i]
  end
end
for i = 1, #gone, 1000 do
  redis.call('HDEL', KEYS[1], unpack(gone, i, math.min(i + 999, #gone)))
end
return string.format('%.0f', math.min(sum, 2 ^ 53))
