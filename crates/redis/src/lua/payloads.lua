-- The data of events by their slots. ARGV: seen, run, slots.
-- Most logs are short: their first entries are looked through. Of what comes later the run's `marks` know the place.
local answers, found = { counted(), format('%.0f', us) }, {}
local function keep(entry)
  local field, text = entry[2][1], entry[2][2]
  local function look(from, to)
    local slot, data = match(text, '^%S+ %S+ %S+ (%d+) ()', from)
    if slot then found[slot] = sub(text, data, to) end
  end
  if field == 'event' then look(1, #text) else each_event(text, look) end
end
local first = call('XRANGE', LOG .. ARGV[2], '-', '+', 'COUNT', MARK)
for _, entry in ipairs(first) do keep(entry) end
if #first == MARK then
  local fields = {}
  for i = 3, #ARGV do fields[i - 2] = 's' .. ARGV[i] end
  for _, id in ipairs(fetch(base .. ':marks:' .. ARGV[2], fields)) do
    local entry = id and call('XRANGE', LOG .. ARGV[2], id, id)[1]
    if entry then keep(entry) end
  end
end
for i = 3, #ARGV do answers[i] = found[ARGV[i]] or '' end
return answers
