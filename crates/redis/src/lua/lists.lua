-- Puts runs of a tenant into the lists that their rows ask for. ARGV: seen, tenant, list, cursor. Without a list, goes through a part of all
-- keys, and gives those of the lists that runs of the tenant can be in; with one, through a part of its members, and takes
-- out those that do not belong there. Rows and lists are compared in one call, so that no commit comes in between.
local tenant, list = ARGV[2], ARGV[3]
local answers = { counted(), format('%.0f', us), '0' }

local function enlist(run)
  local row = read_row(run)
  if not row then return end
  relist(run, way_name(run, nil, row.status, row.flow), row.number, nil, row.ended ~= '-' and row.ended, row.kept)
  local created, said = match(call('GET', START .. run) or '', '^(%S+)(.*)$')
  if said then new_run(run, row.number, created, said) end
end

if list == '' then
  local found = call('SCAN', ARGV[4], 'MATCH', base .. ':*', 'COUNT', 500)
  answers[3] = found[1]
  local run_key = RUN .. tenant .. '/'
  for _, key in ipairs(found[2]) do
    local name = sub(key, #base + 2)
    local kind, of = match(name, '^(%a+):?([^:]*)')
    if find(key, run_key, 1, true) == 1 then
      enlist(sub(key, #RUN + 1))
    elseif kind == 'ended' or kind == 'trimmed' or ((kind == 'by' or kind == 'label') and of == tenant) then
      answers[#answers + 1] = name
    end
  end
else
  local key = base .. ':' .. list
  local whole = find(list, '^ended') or find(list, '^trimmed')
  local found = call('ZSCAN', key, ARGV[4], 'COUNT', 500)
  answers[3] = found[1]
  for at = 1, #found[2], 2 do
    local member = found[2][at]
    local run = whole and member or tenant .. '/' .. member
    if find(run, tenant .. '/', 1, true) == 1 then
      -- Who belongs there is entered again by the same call.
      drop(key, member)
      enlist(run)
    end
  end
end
if next(sets) or next(ways) then
  finish()
  answers[1] = counted()
end
return answers
