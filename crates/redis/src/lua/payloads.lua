-- The data of events by their slots. ARGV: seen, run, slots.
-- Most logs are short: their first entries are looked through. Of what comes later the run's `marks` know the place.
local answers, found = { counted(), format('%.0f', us) }, {}
local function keep(entry)
  local slot, data = match(entry[2][2], '^%S+ %S+ %S+ (%d+) (.*)$')
  if slot then found[slot] = data end
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
