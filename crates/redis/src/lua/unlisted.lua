-- Finds runs of a tenant that the list of their status lacks. ARGV: seen, tenant, cursor. Goes through a part of all keys. Rows
-- and lists are compared in one call, so that no commit comes in between.
local tenant = ARGV[2]
local found = call('SCAN', ARGV[3], 'MATCH', RUN .. tenant .. '/*', 'COUNT', 500)
local answers = { counted(), format('%.0f', us), found[1] }
for _, key in ipairs(found[2]) do
  local run = sub(key, #RUN + 1)
  local row = read_row(run)
  local word = row and word_of(row.status)
  if word and not call('ZSCORE', base .. ':by:' .. tenant .. ':' .. word, sub(run, #tenant + 2)) then
    answers[#answers + 1] = run
  end
end
return answers
