-- Runs by tenant, flow, status and, of machines, state: the sizes of their lists. ARGV: seen, statuses.
local answers = { counted(), format('%.0f', us) }
local function give(tenant, flow, status, state, count)
  if count > 0 then answers[#answers + 1] = tenant .. ' ' .. flow .. ' ' .. status .. ' ' .. state .. ' ' .. count end
end

local of_machines = {}
for _, known in ipairs(call('SMEMBERS', base .. ':states')) do
  local tenant, flow, state = match(known, '^([^/]+)/([^/]+)/(.+)$')
  for i = 2, #ARGV do
    local list = base .. ':by:' .. tenant .. ':' .. ARGV[i] .. ':' .. flow
    local count = call('ZCARD', list .. ':' .. state)
    of_machines[list] = (of_machines[list] or 0) + count
    give(tenant, flow, ARGV[i], state, count)
  end
end
for _, known in ipairs(call('SMEMBERS', base .. ':flows')) do
  local tenant, flow = match(known, '^([^/]+)/(.+)$')
  for i = 2, #ARGV do
    local list = base .. ':by:' .. tenant .. ':' .. ARGV[i] .. ':' .. flow
    give(tenant, flow, ARGV[i], '/', call('ZCARD', list) - (of_machines[list] or 0))
  end
end
return answers
