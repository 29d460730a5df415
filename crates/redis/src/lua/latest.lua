-- Makes a definition its flow's latest, or retires the flow. ARGV: seen, who, tenant, flow, hash (none: retires it).
local tenant, flow, hash = ARGV[3], ARGV[4], ARGV[5]
local latest = base .. ':latest:' .. tenant
local function is_of_flow(known) return call('HGET', base .. ':def:' .. tenant .. '/' .. known, 'flow') == flow end
local found = false
if hash then
  found = is_of_flow(hash)
  if found then call('HSET', latest, flow, hash) end
else
  found = call('HDEL', latest, flow) == 1
  if not found then
    for _, known in ipairs(call('ZRANGE', base .. ':defs:' .. tenant, 0, -1)) do found = found or is_of_flow(known) end
  end
end
finish(ARGV[2])
return { counted(), format('%.0f', us), found and '1' or '0' }
