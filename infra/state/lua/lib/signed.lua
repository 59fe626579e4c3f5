-- Functions on signed records. Requires base.

-- signed reads a record and the MACs of its fields in one step. It returns {fields, MACs}, each as from HGETALL and
-- empty if missing, or {} if either is not a hash or the record has more than `most` bytes.
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
