#!lua
-- record: a signed record and the MACs of its fields.
-- KEYS[1] prefix
-- ARGV[2] its key after the prefix  [3] most bytes that are returned
-- Returns {fields, MACs}, each as HGETALL has them, none for what is missing; {} for what is no hash or has more bytes.
-- Invariant: reads only, both in one step.
local out, bytes = {}, 0
for i, key in ipairs({P .. ARGV[2], P .. ARGV[2] .. ':mac'}) do
  local flat = redis.pcall('HGETALL', key)
  if flat.err then return {} end
  for _, v in ipairs(flat) do bytes = bytes + #v end
  out[i] = flat
end
if bytes > tonumber(ARGV[3]) then return {} end
return out
