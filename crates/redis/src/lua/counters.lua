-- Runs by tenant, flow and status: the sizes of their lists. ARGV: seen, statuses.
local answers = { tostring(n), format('%.0f', us) }
for _, flow in ipairs(call('SMEMBERS', base .. ':flows')) do
  local tenant, name = match(flow, '^([^/]+)/(.+)$')
  for i = 2, #ARGV do
    local count = call('ZCARD', base .. ':by:' .. tenant .. ':' .. ARGV[i] .. ':' .. name)
    if count > 0 then answers[#answers + 1] = tenant .. ' ' .. name .. ' ' .. ARGV[i] .. ' ' .. count end
  end
end
return answers
