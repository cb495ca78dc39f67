--[[
put: make all of these writes of records or none, in order. See record_lib.lua for the keys.

  ARGV[1] '1' if no watcher is to be woken, else ''
  ARGV[2] writes (msgpack), each {kind, id, stamp, leaseless} to drop a record, or
          {kind, id, stamp, body, index, lane, due, attempts, job, needs kind, needs id} to put one.
          `stamp` is '' if it does not matter
  ARGV[3] commands (msgpack) that show people what was written, keys without the prefix
  returns {'', stamp ...} with the stamp of each record afterwards, or {why, which write}; why is stamp, needs, job or
          leaseless

Everything is looked at before anything is written; `left` has what the writes before leave.
]]
local writes, left = cmsgpack.unpack(ARGV[2]), {}

local function stamp_at(kind, id)
  local name = kind .. ' ' .. id
  if not left[name] then left[name] = records().stamp_of(kind, id) end
  return left[name]
end

local function refusal(write)
  local kind, id, stamp = unpack(write, 1, 3)
  local before = stamp_at(kind, id)
  if stamp ~= '' and before ~= tonumber(stamp) then return 'stamp' end
  if #write == 4 then
    if write[4] ~= '' and #leases_of(write[4], 0, 1) > 0 then return 'leaseless' end
    left[kind .. ' ' .. id] = 0
    return
  end
  local job, needs_kind, needs_id = unpack(write, 9, 11)
  if needs_kind ~= '' and stamp_at(needs_kind, needs_id) == 0 then return 'needs' end
  if job ~= '' and call('EXISTS', P .. 'job:' .. job) == 0 then return 'job' end
  left[kind .. ' ' .. id] = before + 1
end

for n, write in ipairs(writes) do
  local why = refusal(write)
  if why then return {why, n} end
end

local outcome = {''}
for n, write in ipairs(writes) do
  local kind, id = write[1], write[2]
  if #write == 4 then
    records().drop_record(kind, id)
    outcome[n + 1] = 0
  else
    outcome[n + 1] = records().put_record(kind, id, unpack(write, 4, 9))
  end
end
for _, view in ipairs(cmsgpack.unpack(ARGV[3])) do
  view[2] = P .. view[2]
  call(unpack(view))
end
if ARGV[1] == '' then tell({}) end
return outcome
