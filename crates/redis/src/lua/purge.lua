-- One part of what retention leaves to be taken away: entries of the feed that lead nowhere any more, and key-value state,
-- locks and documents past their time. ARGV: seen, whether the store has one shard only, the entry to go on after. Gives
-- whether there is more, and the entry that the feed was looked through to.
local PART, ENTRIES = 100, 8
-- 30 days.
local MARKS_MS = 2592000000
local more, at, dead = '0', ARGV[3], {}
-- Marks of processes that are long gone, and retentions that no ended run has any more.
if at == '0' then
  for _, own in ipairs(call('SMEMBERS', base .. ':retains')) do
    if call('EXISTS', base .. ':ended:' .. own, base .. ':trimmed:' .. own) == 0 then
      call('SREM', base .. ':retains', own)
    end
  end
  local fields, gone = call('HGETALL', KEYS[1]), {}
  for i = 1, #fields, 2 do
    local date = sub(fields[i], 1, 2) == 'w:' and match(fields[i + 1], '%d+$')
    if date and tonumber(date) < now - MARKS_MS then gone[#gone + 1] = fields[i] end
  end
  if #gone > 0 then spread({ 'HDEL', KEYS[1] }, gone, 1) end
end
for _, entry in ipairs(call('XRANGE', base .. ':feed', '(' .. at .. '-0', '+', 'COUNT', ENTRIES)) do
  local logs = {}
  for run in string.gmatch(entry[2][2], '([^\n ]+) [^\n]*') do logs[#logs + 1] = LOG .. run end
  local alive = call('EXISTS', unpack(logs))
  -- What comes after an entry that is needed whole is newer than what was forgotten: later calls begin anew.
  if alive == #logs then
    more = '0'
    break
  end
  more, at = '1', match(entry[1], '^%d+')
  if alive == 0 then dead[#dead + 1] = entry[1] end
end
if #dead > 0 then spread({ 'XDEL', base .. ':feed' }, dead, 1) end
local expired = call('ZRANGEBYSCORE', base .. ':expiring', '-inf', now, 'LIMIT', 0, PART)
for _, member in ipairs(expired) do
  local owner, field = match(member, '^(%S+) (.*)$')
  local key = base .. ':state:' .. owner
  local text = call('HGET', key, field)
  local expires = text and match(text, '^(%S+)')
  if expires and expires ~= '-' and tonumber(expires) <= now then
    drop_value(owner, field, match(text, '^%S+ (%d+)'), ARGV[2] == '1')
  end
  drop(base .. ':expiring', member)
end
local ended = call('ZRANGEBYSCORE', base .. ':doc-ends', '-inf', now, 'LIMIT', 0, PART)
for _, member in ipairs(ended) do drop_document(match(member, '^(%S+) (.*)$')) end
if #expired == PART or #ended == PART then more = '1' end
if #dead > 0 or #expired > 0 or #ended > 0 then finish() end
return { counted(), format('%.0f', us), more, at }
