-- Key-value state. ARGV: seen, verb, owner; then of `get` the bytes that are enough and fields; of `set`: field, value (empty: deletes), time to live (empty:
-- none), its order among shards (0: the clock), whether the store has one shard only.
local verb, owner = ARGV[2], ARGV[3]
local answers = { counted(), format('%.0f', us) }
if verb == 'set' then
  local field, value, ttl = ARGV[4], ARGV[5], ARGV[6]
  local order = ARGV[7] ~= '0' and ARGV[7] or tick()
  if value == '' then
    drop_value(owner, field, order, ARGV[8] == '1')
  else
    put_value(owner, field, ttl == '' and '-' or now + tonumber(ttl), order, value)
  end
  finish()
  answers[1] = counted()
  return answers
end
-- Answers how many fields it has looked at, then what it found.
local bytes, looked = 0, 0
for i = 5, #ARGV do
  if bytes >= tonumber(ARGV[4]) then break end
  looked = looked + 1
  local text = call('HGET', base .. ':state:' .. owner, ARGV[i])
  if text then
    local expires, order, value = match(text, '^(%S+) (%d+) (.*)$')
    -- A remembered deletion has no value, and is told so that it wins against older values elsewhere.
    if expires ~= '-' and tonumber(expires) <= now then value = '' end
    bytes = bytes + #value
    for _, part in ipairs({ ARGV[i], expires, order, value }) do answers[#answers + 1] = part end
  end
end
table.insert(answers, 3, tostring(looked))
return answers
