// Renders chat templates with the engine of llama.cpp (common/jinja): a JSON object on each line in, one on each line out.
#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "json.h"

#include <iostream>

using json = common_json;

int main() {
    std::string line, source;
    jinja::program program;
    while (std::getline(std::cin, line)) {
        json answer = json::object();
        try {
            const json asked = json::parse(line);
            if (asked.contains("source")) {
                source = asked.at("source").get<std::string>();
                jinja::lexer lexer;
                program = jinja::parse_from_tokens(lexer.tokenize(source));
            } else {
                jinja::context context(source);
                context.current_time = (std::time_t) asked.at("now").get<int64_t>();
                jinja::global_from_json(context, asked.at("variables"), false);
                jinja::runtime runtime(context);
                const auto parts = jinja::runtime::gather_string_parts(runtime.execute(program));
                answer["text"] = parts->as_string().str();
            }
        } catch (const std::exception & error) {
            answer["error"] = std::string(error.what());
        }
        std::cout << answer.dump() << std::endl;
    }
}
