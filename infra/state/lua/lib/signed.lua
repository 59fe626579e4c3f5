-- Functions on signed records. Needs base.

-- signed reads a record and the MACs of its fields in one step: {fields, MACs}, each as HGETALL has them, none for what is
-- missing; {} for what is no hash or has more bytes than most.
local function signed(name, most)
  local out, bytes = {}, 0
  for i, key in ipairs({P .. name, P .. name .. ':mac'}) do
    local flat = redis.pcall('HGETALL', key)
    if flat.err then return {} end
    for _, v in ipairs(flat) do bytes = bytes + #v end
    out[i] = flat
  end
  if bytes > tonumber(most) then return {} end
  return out
end
