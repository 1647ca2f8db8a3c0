/* Forms of dialogues by hand. See chat.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdlib.h>

#include "engine_plugin/npc/chat.h"
#include "kernels/model/json.h"

struct td_chat_own {
    td_chat_form form;
    td_json json; /* which has its texts */
};

typedef struct reader {
    td_chat_own *own;
    char *why;
    size_t why_bytes;
} reader;

static tandem_status refuse(reader *r, const char *name, const char *what)
{
    return td_fail(r->why, r->why_bytes, TANDEM_ERROR_ARG, "\"" TD_NAME "\" %s", TD_NAMED(name),
                   what);
}

/* ["before", "behind"] */
static tandem_status read_pair(reader *r, const td_json_value *v, const char *to[2])
{
    if (v->type != TD_JSON_ARRAY || v->count != 2 || v[1].type != TD_JSON_STRING ||
        v[2].type != TD_JSON_STRING)
        return refuse(r, v->name, "must be two strings: what goes before a text, and behind it");
    to[0] = v[1].text, to[1] = v[2].text;
    return TANDEM_OK;
}

static tandem_status read_flag(reader *r, const td_json_value *v, bool *to)
{
    if (v->type != TD_JSON_BOOL)
        return refuse(r, v->name, "must be true or false");
    *to = !strcmp(v->text, "true");
    return TANDEM_OK;
}

static tandem_status read_member(reader *r, const td_json_value *v)
{
    td_chat_form *form = &r->own->form;
    const struct {
        const char *name, **before, **behind;
    } pairs[] = {{"system", &form->system.before, &form->system.behind},
                 {"user", &form->user.before, &form->user.behind},
                 {"reply", &form->reply.before, &form->reply.behind}};

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const char *texts[2] = {"", ""};

        if (strcmp(v->name, pairs[i].name) != 0)
            continue;
        const tandem_status status = read_pair(r, v, texts);
        *pairs[i].before = texts[0], *pairs[i].behind = texts[1];
        return status;
    }
    if (!strcmp(v->name, "system_in_user"))
        return read_flag(r, v, &form->system_in_user);
    if (!strcmp(v->name, "trims"))
        return read_flag(r, v, &form->trims);
    if (strcmp(v->name, "opening") != 0)
        return refuse(r, v->name,
                      "is none of system, user, reply, opening, system_in_user and trims");
    if (v->type != TD_JSON_STRING)
        return refuse(r, v->name, "must be a string");
    form->opening = v->text;
    return TANDEM_OK;
}

static tandem_status read_form(reader *r)
{
    td_chat_form *form = &r->own->form;
    const td_json *json = &r->own->json;

    if (json->values->type != TD_JSON_OBJECT)
        return td_fail(r->why, r->why_bytes, TANDEM_ERROR_ARG, "it must be an object");
    TD_JSON_EACH (json, 0, i)
    {
        const tandem_status status = read_member(r, &json->values[i]);

        if (status != TANDEM_OK)
            return status;
    }
    if (!form->user.before)
        return refuse(r, "user", "is missing");
    if (!form->reply.before)
        return refuse(r, "reply", "is missing");
    if (!form->system.before)
        form->system.before = "", form->system.behind = "\n\n";
    if (!form->opening)
        form->opening = form->reply.before;
    return TANDEM_OK;
}

tandem_status td_chat_own_create(const char *text, td_chat_own **out, char *why, size_t why_bytes)
{
    reader r = {.own = calloc(1, sizeof *r.own), .why = why, .why_bytes = why_bytes};

    *out = NULL;
    if (!r.own)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a form");
    r.own->form.name = "own";
    tandem_status status = td_json_read(text, strlen(text), &r.own->json, why, why_bytes);
    if (status == TANDEM_OK)
        status = read_form(&r);
    if (status == TANDEM_OK)
        *out = r.own;
    else
        td_chat_own_destroy(&r.own);
    return status == TANDEM_ERROR_PROTOCOL ? TANDEM_ERROR_ARG : status;
}

void td_chat_own_destroy(td_chat_own **own)
{
    if (*own)
        td_json_free(&(*own)->json);
    free(*own);
    *own = NULL;
}

const td_chat_form *td_chat_own_form(const td_chat_own *own)
{
    return &own->form;
}

tandem_status td_chat_choose(const char *name, td_gguf_string program, td_chat_own **own,
                             const td_chat_form **form, char *why, size_t why_bytes)
{
    *own = NULL;
    *form = name ? td_chat_find(name) : td_chat_recognise(program);
    if (!name || *form)
        return TANDEM_OK;
    if (*name != '{')
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "no form of dialogues has this name");
    const tandem_status status = td_chat_own_create(name, own, why, why_bytes);
    if (status == TANDEM_OK)
        *form = td_chat_own_form(*own);
    return status;
}
