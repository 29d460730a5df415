-- Key-value state that lives. ARGV: seen, owner, field (none: all).
local key = base .. ':state:' .. ARGV[2]
local answers = { counted(), format('%.0f', us) }
local function give(field, text)
  local expires, order, value = match(text, '^(%S+) (%d+) (.*)$')
  -- A remembered deletion has no value, and is told so that it wins against older values elsewhere.
  if expires ~= '-' and tonumber(expires) <= now then value = '' end
  answers[#answers + 1] = field
  answers[#answers + 1] = order
  answers[#answers + 1] = value
end
if ARGV[3] then
  local text = call('HGET', key, ARGV[3])
  if text then give(ARGV[3], text) end
else
  local all = call('HGETALL', key)
  for i = 1, #all, 2 do give(all[i], all[i + 1]) end
end
return answers
