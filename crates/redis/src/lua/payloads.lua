-- The data of events by their slots. ARGV: seen, then for each run its name, the number of slots, and the slots.
-- Most logs are short: their first entries are looked through. Of what comes later the run's `marks` know the place.
local answers = { counted(), format('%.0f', us) }
local function payloads(run, from, to)
  local found = {}
  local function keep(entry)
    local field, text = entry[2][1], entry[2][2]
    local function look(first, last)
      local slot, data = match(text, '^%S+ %S+ %S+ (%d+) ()', first)
      if slot then found[slot] = sub(text, data, last) end
    end
    if field == 'event' then look(1, #text) else each_event(text, look) end
  end
  local first = call('XRANGE', LOG .. run, '-', '+', 'COUNT', MARK)
  for _, entry in ipairs(first) do keep(entry) end
  if #first == MARK then
    local fields = {}
    for i = from, to do fields[#fields + 1] = 's' .. ARGV[i] end
    for _, id in ipairs(fetch(base .. ':marks:' .. run, fields)) do
      local entry = id and call('XRANGE', LOG .. run, id, id)[1]
      if entry then keep(entry) end
    end
  end
  for i = from, to do answers[#answers + 1] = found[ARGV[i]] or '' end
end
local at = 2
while at < #ARGV do
  local last = at + 1 + tonumber(ARGV[at + 1])
  payloads(ARGV[at], at + 2, last)
  at = last + 1
end
return answers
