--[[
ask: answer several questions from one state.

  ARGV[1] questions (msgpack), each a command of the server, its second word a key without the prefix
  returns the answers in order
]]
local answers = {}
for i, question in ipairs(cmsgpack.unpack(ARGV[1])) do
  question[2] = P .. question[2]
  answers[i] = call(unpack(question))
end
return answers
