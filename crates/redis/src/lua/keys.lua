-- Makes `keys` of a part of all key-value state that the format before left without. ARGV: seen, where to go on.
local found = call('SCAN', ARGV[2], 'MATCH', base .. ':state:*', 'COUNT', 1000)
for _, key in ipairs(found[2]) do
  local owner = sub(key, #base + 8)
  local args = {}
  if not find(owner, '^lock:') then
    for _, field in ipairs(call('HKEYS', key)) do
      args[#args + 1] = 0
      args[#args + 1] = field
    end
  end
  if #args > 0 then spread({ 'ZADD', base .. ':keys:' .. owner }, args, 2) end
end
return { counted(), format('%.0f', us), found[1] }
